//! Where tensors live and how many threads work on them.

use std::num::NonZeroU32;

use tch::Device;

/// The first GPU where there is one, the processor otherwise.
pub(crate) fn device() -> Device {
    Device::cuda_if_available()
}

/// Sets the number of processor threads of this thread's operations.
pub(crate) fn use_threads(threads: Option<NonZeroU32>) {
    let available = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    tch::set_num_threads(threads.map_or(available, NonZeroU32::get) as i32);
}
