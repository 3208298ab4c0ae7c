//! A check for CUDA's libraries and their functions: the binding panics where one is missing.
//!
//! The binding looks for a function when it is called first, long after a device was opened. So every function that is
//! called here, or by what is called of the binding, is named in a list beside the code that calls it, and looked for
//! when a device is opened.

use cudarc::{cublas, driver, nvrtc};

use super::{SYMBOLS, compile, products};
use crate::{Error, Result};

/// Library that a device needs.
struct Needed {
    name: &'static str,
    /// Instruction to install it, for the error when it is missing or too old.
    install: &'static str,
    is_present: unsafe fn() -> bool,
    /// Returns whether the library that the binding loads, which must be present, has a function.
    has: fn(&str) -> bool,
    symbols: &'static [&'static str],
}

const NEEDED: [Needed; 3] = [
    Needed {
        name: "the NVIDIA driver (libcuda.so.1)",
        install: "install a driver for CUDA 12 or later",
        is_present: driver::sys::is_culib_present,
        // SAFETY: it loads the library as `is_present` does, and it stays. The function is not called.
        has: |symbol| unsafe {
            driver::sys::culib()
                .get::<unsafe extern "C" fn()>(symbol.as_bytes())
                .is_ok()
        },
        symbols: SYMBOLS,
    },
    Needed {
        name: "CUDA's run-time compiler (libnvrtc.so.13 or .12)",
        install: "install the CUDA toolkit, or nvidia-cuda-nvrtc by pip and name its folder in LD_LIBRARY_PATH",
        is_present: nvrtc::sys::is_culib_present,
        // SAFETY: it loads the library as `is_present` does, and it stays. The function is not called.
        has: |symbol| unsafe {
            nvrtc::sys::culib()
                .get::<unsafe extern "C" fn()>(symbol.as_bytes())
                .is_ok()
        },
        symbols: compile::SYMBOLS,
    },
    Needed {
        name: "cuBLAS (libcublas.so.13 or .12)",
        install: "install the CUDA toolkit, or nvidia-cublas by pip and name its folder in LD_LIBRARY_PATH",
        is_present: cublas::sys::is_culib_present,
        // SAFETY: it loads the library as `is_present` does, and it stays. The function is not called.
        has: |symbol| unsafe {
            cublas::sys::culib()
                .get::<unsafe extern "C" fn()>(symbol.as_bytes())
                .is_ok()
        },
        symbols: products::SYMBOLS,
    },
];

/// Checks that the driver, the run-time compiler and cuBLAS are installed, and recent enough.
///
/// # Errors
/// The name of the library that is missing or lacks a function, and what to install.
pub(super) fn check(device: &str) -> Result<()> {
    let wrong = NEEDED.iter().find_map(Needed::wrong);
    wrong.map_or(Ok(()), |reason| {
        Err(Error::Device {
            device: device.to_owned(),
            reason,
        })
    })
}

impl Needed {
    /// Returns what is wrong with the library, if anything is.
    fn wrong(&self) -> Option<String> {
        let Self { name, install, .. } = self;
        // SAFETY: it loads an NVIDIA library by its own name, whose initializers have no preconditions, and unloads it.
        if !unsafe { (self.is_present)() } {
            return Some(format!("{name} is not found: {install}"));
        }
        let lacking = lacking(self.has, self.symbols)?;
        Some(format!(
            "{name} is too old, since it has no {lacking}: {install}"
        ))
    }
}

/// Returns the first of these functions that a library does not have.
fn lacking(has: impl Fn(&str) -> bool, symbols: &[&'static str]) -> Option<&'static str> {
    symbols.iter().copied().find(|symbol| !has(symbol))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::process::Command;

    use libloading::Library;

    use super::*;

    /// Functions of CUDA that the binding's functions call, by their path behind `result::`.
    const WRAPPED: &[(&str, &[&str])] = &[
        ("malloc_sync", &["cuMemAlloc_v2"]),
        ("free_sync", &["cuMemFree_v2"]),
        ("malloc_host", &["cuMemHostAlloc"]),
        ("free_host", &["cuMemFreeHost"]),
        ("memset_d8_async", &["cuMemsetD8Async"]),
        ("memcpy_htod_async", &["cuMemcpyHtoDAsync_v2"]),
        ("memcpy_dtoh_async", &["cuMemcpyDtoHAsync_v2"]),
        ("memcpy_dtod_async", &["cuMemcpyDtoDAsync_v2"]),
        ("launch_kernel", &["cuLaunchKernel"]),
        ("module::load_data", &["cuModuleLoadData"]),
        ("module::get_function", &["cuModuleGetFunction"]),
        ("module::unload", &["cuModuleUnload"]),
        ("function::get_function_attribute", &["cuFuncGetAttribute"]),
        ("stream::wait_event", &["cuStreamWaitEvent"]),
        ("event::create", &["cuEventCreate"]),
        ("event::record", &["cuEventRecord"]),
        ("event::synchronize", &["cuEventSynchronize"]),
        ("event::destroy", &["cuEventDestroy_v2"]),
        ("create_program", &["nvrtcCreateProgram"]),
        ("compile_program", &["nvrtcCompileProgram"]),
        ("destroy_program", &["nvrtcDestroyProgram"]),
        ("get_ptx", &["nvrtcGetPTX", "nvrtcGetPTXSize"]),
        (
            "get_program_log",
            &["nvrtcGetProgramLog", "nvrtcGetProgramLogSize"],
        ),
        ("create_handle", &["cublasCreate_v2"]),
        ("destroy_handle", &["cublasDestroy_v2"]),
        ("set_stream", &["cublasSetStream_v2"]),
        ("gemm_strided_batched_ex", &["cublasGemmStridedBatchedEx"]),
    ];

    /// Functions of CUDA that the binding's types call, by what is written here.
    const OF_TYPES: &[(&str, &[&str])] = &[
        (
            "CudaContext::new(",
            &[
                "cuInit",
                "cuDeviceGet",
                "cuDevicePrimaryCtxRetain",
                "cuDevicePrimaryCtxRelease_v2",
                "cuDeviceGetAttribute",
                "cuCtxGetCurrent",
                "cuCtxSetCurrent",
            ],
        ),
        (
            ".new_stream(",
            &["cuCtxSynchronize", "cuStreamCreate", "cuStreamDestroy_v2"],
        ),
        (".mem_get_info(", &["cuMemGetInfo_v2"]),
        (".context.name(", &["cuDeviceGetName"]),
        // By the version of CUDA that the binding was built for.
        (".uuid(", &["cuDeviceGetUuid", "cuDeviceGetUuid_v2"]),
        (".synchronize(", &["cuStreamSynchronize"]),
        (".begin_capture(", &["cuStreamBeginCapture_v2"]),
        (
            ".end_capture(",
            &[
                "cuStreamEndCapture",
                "cuGraphInstantiateWithFlags",
                "cuGraphExecDestroy",
                "cuGraphDestroy",
            ],
        ),
        (".upload(", &["cuGraphUpload"]),
        (".launch(", &["cuGraphLaunch"]),
        ("DriverError", &["cuGetErrorName", "cuGetErrorString"]),
    ];

    /// Returns the code of this folder, without tests.
    fn code() -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/cuda");
        let files = std::fs::read_dir(folder).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        texts
            .map(|text| text.split("#[cfg(test)]").next().unwrap().to_owned())
            .collect()
    }

    /// Returns the paths that are called behind a prefix.
    fn called<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let calls = code.match_indices(prefix).filter_map(move |(at, _)| {
            let begins = !code[..at].ends_with(is_path);
            let rest = &code[at + prefix.len()..];
            let end = rest.find(|c| !is_path(c))?;
            (begins && rest[end..].starts_with('(')).then_some(&rest[..end])
        });
        calls.filter(|path| path.starts_with(|c: char| c.is_ascii_lowercase()))
    }

    #[test]
    fn every_function_that_is_called_is_looked_for() {
        let code = code();
        let listed = NEEDED.iter().flat_map(|needed| needed.symbols).copied();
        let listed: BTreeSet<&str> = listed.collect();
        let mut used: BTreeSet<&str> = called(&code, "sys::").collect();
        let wrapped: Vec<_> = ["result::", "driver::"]
            .into_iter()
            .flat_map(|prefix| called(&code, prefix))
            .filter(|path| !path.starts_with("sys::"))
            .collect();
        assert!(wrapped.len() > 20, "{wrapped:?}");
        for path in wrapped {
            let of = WRAPPED.iter().find(|(name, _)| *name == path);
            let (_, symbols) = of.unwrap_or_else(|| panic!("which symbols does {path} call?"));
            used.extend(symbols.iter());
        }
        for (text, symbols) in OF_TYPES {
            assert!(code.contains(text), "{text} is not called any more");
            used.extend(symbols.iter());
        }
        assert_eq!(used, listed);
    }

    #[test]
    fn an_old_library_is_found_by_the_function_that_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let symbols = products::SYMBOLS;
        for lacks in [None, Some(0), Some(symbols.len() - 1)] {
            let own = symbols.iter().enumerate();
            let own = own.filter(|(at, _)| Some(*at) != lacks);
            let text: String = own
                .map(|(_, name)| format!("extern \"C\" void {name}() {{}}\n"))
                .collect();
            let [source, library] =
                ["blas.cpp", "libcublas.so.13"].map(|of| folder.path().join(of));
            std::fs::write(&source, text).unwrap();
            let compiled = Command::new("c++")
                .args(["-shared", "-fPIC", "-o"])
                .args([&library, &source])
                .status();
            let Ok(status) = compiled else {
                let required = std::env::var("VOLLEY_EMULATED").is_ok_and(|is| is == "required");
                assert!(!required, "c++, a C++ compiler, does not run");
                eprintln!("left out: c++ does not run");
                return;
            };
            assert!(status.success());
            // SAFETY: it was just compiled, and has no initializers. Functions are looked up and not called.
            let opened = unsafe { Library::new(&library) }.unwrap();
            let has = |symbol: &str| {
                unsafe { opened.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_ok()
            };
            assert_eq!(lacking(has, symbols), lacks.map(|at| symbols[at]));
            drop(opened);
            // A library that is loaded is known by its file.
            std::fs::remove_file(library).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_with_a_library_is_said_with_what_to_install() {
        let missing = Needed {
            name: "cuBLAS",
            install: "install it",
            is_present: || false,
            has: |_| true,
            symbols: &[],
        };
        assert_eq!(missing.wrong().unwrap(), "cuBLAS is not found: install it");
        // SAFETY: it loads an NVIDIA library by its name.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            return;
        }
        let [_, compiler, _] = NEEDED;
        assert_eq!(compiler.wrong(), None);
        let old = Needed {
            symbols: &["nvrtcVersion", "nvrtcOfTheFuture"],
            ..compiler
        };
        let reason = old.wrong().unwrap();
        assert!(
            reason.contains("libnvrtc.so.13")
                && reason.contains("nvrtcOfTheFuture")
                && reason.contains("nvidia-cuda-nvrtc"),
            "{reason}"
        );
    }
}
