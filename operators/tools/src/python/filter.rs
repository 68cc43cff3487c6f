//! The system-call filter that code in the sandbox runs under.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// System calls that are refused whatever their arguments: new processes and programs, sockets, mounts and namespaces,
/// other processes' memory, kernel interfaces that code has no use for.
const REFUSED: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fsopen,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

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
