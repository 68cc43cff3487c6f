//! The system-call filter that code in the sandbox runs under.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// System calls that are refused whatever their arguments.
const REFUSED: &[libc::c_long] = &[
    // New processes and programs.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    // A hold on other processes.
    libc::SYS_ioprio_set,
    libc::SYS_kcmp,
    libc::SYS_kill,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_setpgid,
    libc::SYS_setpriority,
    libc::SYS_setsid,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    // The network, and what outlives a process.
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_mq_open,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_shmget,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_fsetxattr,
    libc::SYS_lsetxattr,
    libc::SYS_setxattr,
    // Mounts and namespaces.
    libc::SYS_chroot,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    // Kernel interfaces that code has no use for.
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Terminal requests that put words into somebody else's mouth.
const REFUSED_REQUESTS: [u64; 3] = [libc::TIOCSTI, TIOCLINUX, libc::TIOCSETD];
const TIOCLINUX: u64 = 0x541c;

/// The filters as hexadecimal programs, to be applied in order.
///
/// `clone` is refused unless it makes a thread. `clone3` hides its flags from filters, so it seems not to exist, and the
/// C library falls back to `clone`.
pub(super) fn programs() -> Result<Vec<String>, BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let thread = libc::CLONE_THREAD as u64;
    let no_thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), 0)?;
    refused.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_thread])?]);
    // Limits of its own process alone, whose number is 0 there.
    let another = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?;
    refused.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![another])?]);
    let request = |request| SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request);
    let requests: Result<Vec<SeccompRule>, BackendError> =
        REFUSED_REQUESTS.into_iter().map(|number| SeccompRule::new(vec![request(number)?])).collect();
    refused.insert(libc::SYS_ioctl, requests?);
    let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let program = |rules, errno: i32| -> Result<String, BackendError> {
        let action = SeccompAction::Errno(errno as u32);
        let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?.try_into()?;
        let bytes = filter.iter().flat_map(|step| {
            let mut bytes = step.code.to_ne_bytes().to_vec();
            bytes.extend([step.jt, step.jf]);
            bytes.extend(step.k.to_ne_bytes());
            bytes
        });
        Ok(bytes.map(|byte| format!("{byte:02x}")).collect())
    };
    Ok(vec![program(missing, libc::ENOSYS)?, program(refused, libc::EPERM)?])
}
