//! Build script of every package with a binary or test that links libtorch.
//!
//! Link arguments reach only the package that gives them, and only direct dependants of torch-sys learn where libtorch
//! is. `--no-as-needed` keeps `libtorch.so` among the needed libraries: an empty stub on a CPU machine, the library that
//! brings CUDA where `LD_LIBRARY_PATH` names a full PyTorch.

#![expect(clippy::print_stdout, reason = "that is how build scripts talk to cargo")]

fn main() {
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    if let Ok(folder) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        let arguments = [
            format!("-Wl,-rpath,{folder}"),
            "-Wl,--no-as-needed".to_owned(),
            format!("-L{folder}"),
            "-ltorch".to_owned(),
            "-Wl,--as-needed".to_owned(),
        ];
        for argument in arguments {
            println!("cargo:rustc-link-arg={argument}");
        }
    }
}
