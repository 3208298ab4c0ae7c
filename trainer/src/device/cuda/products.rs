//! Products of matrices by cuBLAS: all lanes at once, in the requested precision.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::cublas::{result, sys};
use cudarc::driver::{CudaStream, result as driver};

use super::failed;
use crate::Result;
use crate::device::runtime::{Factors, Operand, Product};

/// Functions of cuBLAS that are called.
pub(super) const SYMBOLS: &[&str] = &[
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasGemmStridedBatchedEx",
    "cublasGetVersion_v2",
    "cublasSetStream_v2",
    "cublasSetWorkspace_v2",
];

/// Size of cuBLAS' workspace in bytes: its default on Hopper. It is set, so that nothing is allocated while a step is
/// recorded.
const WORKSPACE: usize = 32 << 20;

/// cuBLAS on a stream.
#[derive(Debug)]
pub(super) struct Products {
    device: String,
    handle: sys::cublasHandle_t,
    workspace: u64,
    _stream: Arc<CudaStream>,
}

impl Products {
    pub(super) fn new(device: &str, stream: &Arc<CudaStream>) -> Result<Self> {
        let start = "start cuBLAS";
        let handle = result::create_handle().map_err(failed(device, start))?;
        // SAFETY: the handle was just created; stream and workspace live as long as it.
        let workspace = unsafe {
            let workspace = driver::malloc_sync(WORKSPACE).map_err(failed(device, start))?;
            let set = result::set_stream(handle, stream.cu_stream().cast());
            set.map_err(failed(device, start))?;
            let set = sys::cublasSetWorkspace_v2(handle, workspace as *mut c_void, WORKSPACE);
            set.result().map_err(failed(device, start))?;
            workspace
        };
        Ok(Self {
            device: device.to_owned(),
            handle,
            workspace,
            _stream: Arc::clone(stream),
        })
    }

    /// Returns the version of cuBLAS.
    pub(super) fn version(&self) -> Option<i32> {
        let mut version = 0;
        // SAFETY: the handle lives as long as `self`, and the number outlives the call that writes it.
        let asked = unsafe { sys::cublasGetVersion_v2(self.handle, &raw mut version) };
        asked.result().ok().map(|()| version)
    }

    /// Queues a product. Row-major matrices are the transposes of cuBLAS', so `cᵀ = bᵀ · aᵀ`.
    pub(super) fn queue(&self, product: &Product) -> Result<()> {
        let Product {
            a,
            b,
            c,
            sizes: [m, n, k],
            lanes,
            add,
            factors,
        } = product;
        let [m, n, k, lanes] = [*m, *n, *k, *lanes].map(|size| size as c_int);
        let operation = |operand: &Operand| match operand.transposed {
            true => sys::cublasOperation_t::CUBLAS_OP_T,
            false => sys::cublasOperation_t::CUBLAS_OP_N,
        };
        let compute = match factors {
            Factors::F32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Factors::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            Factors::Bf16 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_16BF,
        };
        let (alpha, beta) = (1.0_f32, f32::from(u8::from(*add)));
        let float = sys::cudaDataType_t::CUDA_R_32F;
        // SAFETY: the operands are in memory that `network::plan` holds, as large as the sizes, strides and lanes say;
        // alpha and beta are read before the call returns.
        let queued = unsafe {
            result::gemm_strided_batched_ex(
                self.handle,
                operation(b),
                operation(a),
                n,
                m,
                k,
                (&raw const alpha).cast(),
                b.at as *const c_void,
                float,
                b.ld as c_int,
                b.lane as i64,
                a.at as *const c_void,
                float,
                a.ld as c_int,
                a.lane as i64,
                (&raw const beta).cast(),
                c.at as *mut c_void,
                float,
                c.ld as c_int,
                c.lane as i64,
                lanes,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        queued.map_err(|error| {
            let what = format!("multiply {m} × {k} by {k} × {n}");
            failed(&self.device, &what)(error)
        })
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: both were created here, and are freed once.
        unsafe {
            let _ = result::destroy_handle(self.handle);
            let _ = driver::free_sync(self.workspace);
        }
    }
}
