//! Where tensors live and how many threads work on them.

use std::num::NonZeroU32;

use operators::{OperatorError, ParamsError};
use tch::Device;

/// The first GPU where there is one, the processor otherwise.
pub(crate) fn device() -> Device {
    Device::cuda_if_available()
}

/// More processor threads than any machine has use for.
const MOST_THREADS: u32 = 1024;

/// Whether a number of processor threads can be used.
pub(crate) fn check_threads(threads: Option<NonZeroU32>) -> Result<(), ParamsError> {
    match threads {
        Some(threads) if threads.get() > MOST_THREADS => {
            Err(ParamsError::at("threads", format!("out of range: at most {MOST_THREADS}")))
        }
        _ => Ok(()),
    }
}

/// Sets the number of processor threads of this thread's operations.
pub(crate) fn use_threads(threads: Option<NonZeroU32>) {
    let available = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    tch::set_num_threads(threads.map_or(available, NonZeroU32::get) as i32);
}

/// Has libtorch multiply two small matrices, and says where.
pub fn prove_libtorch() -> Result<String, OperatorError> {
    let device = device();
    let eye = tch::Tensor::f_eye(2, (tch::Kind::Float, device));
    let sum = eye.and_then(|eye| eye.f_matmul(&eye)).and_then(|product| product.f_sum(tch::Kind::Float));
    let sum = sum.map_err(|error| OperatorError::environment("libtorch does not work").because(error))?;
    let sum = sum.double_value(&[]);
    if sum != 2.0 {
        return Err(OperatorError::environment(format!("libtorch is wrong: the trace of a unit matrix is {sum}")));
    }
    Ok(match device {
        Device::Cpu => format!("on the processor, {} threads", tch::get_num_threads()),
        _ => format!("on {} GPU", tch::Cuda::device_count()),
    })
}
