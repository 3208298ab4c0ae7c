//! The kernels' machine code for a GPU: compiled by NVRTC once, and cached in the user's cache folder.
//!
//! The code is for the GPU's exact architecture, so that a newer compiler does not depend on an older driver. Where the
//! compiler is older than the GPU, it is PTX of the nearest earlier architecture, which the driver compiles.

use std::ffi::{CString, c_int};

use cudarc::nvrtc::{result, sys};
use twox_hash::XxHash64;

use crate::device::cache::{folder, keep};
use crate::device::runtime::KERNELS;
use crate::{Error, Result};

/// Functions of NVRTC that are called.
pub(super) const SYMBOLS: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
    "nvrtcVersion",
];

/// Option to round products and sums separately, as the CPU does: ranks on both compute the same from the same
/// gradient.
const OPTION: &str = "--fmad=false";

/// Returns the code for a compute capability, such as 90 for 9.0: the cached one, unless it is to be compiled `anew`.
///
/// # Errors
/// When the compiler rejects the kernels, with its log.
pub(super) fn image(device: &str, capability: u32, anew: bool) -> Result<Vec<u8>> {
    let kept = folder().map(|folder| folder.join(name(capability)));
    let found = kept.as_ref().filter(|_| !anew);
    if let Some(image) = found.and_then(|kept| std::fs::read(kept).ok()) {
        return Ok(image);
    }
    let image = compile(capability).map_err(|reason| Error::DeviceFailed {
        device: device.to_owned(),
        what: format!("compile the kernels for compute capability {capability}"),
        reason,
    })?;
    if kept.and_then(|kept| keep(&kept, &image).ok()).is_none() {
        tracing::debug!("compiled kernels are not kept: the cache folder cannot be written to");
    }
    Ok(image)
}

/// Returns a file name made of the code's dependencies: the text, the compiler and the architecture.
pub(super) fn name(capability: u32) -> String {
    let (major, minor) = version();
    let hash = XxHash64::oneshot(0, [OPTION, KERNELS].concat().as_bytes());
    format!("plan-{hash:016x}-nvrtc-{major}.{minor}-sm_{capability}")
}

fn version() -> (c_int, c_int) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both outlive the call that writes them.
    let _ = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    (major, minor)
}

/// Returns the architectures that the compiler knows, ascending.
fn known() -> Vec<u32> {
    let mut count = 0;
    // SAFETY: the count outlives the call, and the list has room for that many.
    unsafe {
        let _ = sys::nvrtcGetNumSupportedArchs(&raw mut count);
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        let _ = sys::nvrtcGetSupportedArchs(known.as_mut_ptr());
        known
            .into_iter()
            .filter_map(|one| u32::try_from(one).ok())
            .collect()
    }
}

/// Compiles the kernels, or returns the reason why not.
pub(super) fn compile(capability: u32) -> std::result::Result<Vec<u8>, String> {
    let known = known();
    let (kind, of) = match known.iter().rfind(|known| **known <= capability) {
        Some(same) if *same == capability => ("sm", capability),
        Some(older) => ("compute", *older),
        None => return Err(format!("this NVRTC compiles for {known:?} only")),
    };
    let text = CString::new(KERNELS).expect("the text has no zero");
    let program =
        result::create_program(&text, Some(c"kernels.cu")).map_err(|error| error.to_string())?;
    let options = [format!("--gpu-architecture={kind}_{of}"), OPTION.to_owned()];
    // SAFETY: the program was just created, and is destroyed once, at the end.
    unsafe {
        let compiled = result::compile_program(program, &options);
        let image = match compiled {
            Err(error) => Err(format!("{error}: {}", log(program))),
            Ok(()) if kind == "sm" => cubin(program),
            Ok(()) => result::get_ptx(program)
                .map(|ptx| ptx.into_iter().map(|byte| byte as u8).collect())
                .map_err(|error| error.to_string()),
        };
        let _ = result::destroy_program(program);
        image
    }
}

/// # Safety
/// The program must have been created and not destroyed.
unsafe fn log(program: sys::nvrtcProgram) -> String {
    // SAFETY: guaranteed by the caller.
    let log = unsafe { result::get_program_log(program) };
    let bytes = log.unwrap_or_default().into_iter().map(|byte| byte as u8);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// # Safety
/// The program must have been compiled for an architecture, and not destroyed.
unsafe fn cubin(program: sys::nvrtcProgram) -> std::result::Result<Vec<u8>, String> {
    let mut len = 0;
    // SAFETY: guaranteed by the caller; the image has room for the bytes that NVRTC announces.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &raw mut len)
            .result()
            .map_err(|error| error.to_string())?;
        let mut image = vec![0_u8; len];
        sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast())
            .result()
            .map_err(|error| error.to_string())?;
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without NVRTC, prints so and passes, unless `VOLLEY_NVRTC=required` demands it.
    #[test]
    fn kernels_compile_for_every_architecture() {
        // SAFETY: it loads an NVIDIA library by its name.
        if !unsafe { sys::is_culib_present() } {
            let required = std::env::var("VOLLEY_NVRTC").is_ok_and(|is| is == "required");
            assert!(
                !required,
                "NVRTC is not found: LD_LIBRARY_PATH must name its folder"
            );
            eprintln!("left out: NVRTC is not installed");
            return;
        }
        let known = known();
        let name = |line: &'static str| {
            let line = line.strip_prefix("BLOCK_").unwrap_or(line);
            let (name, _) = line.strip_prefix("KERNEL(")?.split_once(") {")?;
            Some(name)
        };
        let kernels: Vec<&str> = KERNELS.lines().filter_map(name).collect();
        assert!(kernels.len() > 30, "{kernels:?}");
        for capability in [80, 86, 89, 90, 100] {
            if !known.contains(&capability) {
                eprintln!("left out: this NVRTC does not know sm_{capability}");
                continue;
            }
            let image = compile(capability).unwrap_or_else(|log| panic!("sm_{capability}: {log}"));
            assert!(image.starts_with(b"\x7fELF"), "sm_{capability}");
            for name in &kernels {
                let is_there = image.windows(name.len()).any(|at| at == name.as_bytes());
                assert!(is_there, "sm_{capability} lacks {name}");
            }
        }
        // A GPU newer than the compiler, one between those that it knows, and one that is too old.
        let ptx = |capability| compile(capability).unwrap();
        assert!(ptx(9990).windows(6).any(|at| at == b".entry"));
        let unknown = (81..).find(|capability| !known.contains(capability));
        let text = String::from_utf8(ptx(unknown.unwrap())).unwrap();
        assert!(text.contains(".target sm_80"), "{text}");
        assert!(compile(10).is_err());
    }
}
