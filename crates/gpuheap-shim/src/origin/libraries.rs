//! Which library a file is, by its name.

use gpuheap_ledger::Origin;

/// What code at an address says about who asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Says {
    /// That it was this one.
    Origin(Origin),
    /// Nothing: it passes on what somebody else wants.
    PassesOn,
    /// That there is nobody to be found behind it.
    Nobody,
}

/// How a rule looks at a file.
enum Looks {
    /// At the beginning of its name.
    Name,
    /// Anywhere in its path.
    Path,
}

/// The first rule that fits counts. Names of libraries are those that their makers gave them, with a version or, where a
/// wheel carries a copy, a hash behind. A rule that looks at a path is for extensions of Python, whose names say little.
const RULES: &[(Looks, &str, Says)] = &[
    (Looks::Name, "libcudart", Says::PassesOn),
    (Looks::Name, "libcuda.so", Says::PassesOn),
    (Looks::Name, "libcuda-real.so", Says::PassesOn),
    (Looks::Name, "libcublas", Says::Origin(Origin::CuBlas)),
    (Looks::Name, "libnvblas", Says::Origin(Origin::CuBlas)),
    (Looks::Name, "libcudnn", Says::Origin(Origin::CuDnn)),
    (Looks::Name, "libcufft", Says::Origin(Origin::CuFft)),
    (Looks::Name, "libcusparse", Says::Origin(Origin::CuSparse)),
    (Looks::Name, "libcusolver", Says::Origin(Origin::CuSolver)),
    (Looks::Name, "libcurand", Says::Origin(Origin::CuRand)),
    (Looks::Name, "libnccl", Says::Origin(Origin::Nccl)),
    (Looks::Name, "libc10", Says::Origin(Origin::PyTorch)),
    (Looks::Name, "libtorch", Says::Origin(Origin::PyTorch)),
    (Looks::Name, "xla_", Says::Origin(Origin::Xla)),
    (Looks::Name, "libjax", Says::Origin(Origin::Xla)),
    (Looks::Name, "libxla", Says::Origin(Origin::Xla)),
    (Looks::Name, "pjrt_", Says::Origin(Origin::Xla)),
    (Looks::Path, "/jaxlib/", Says::Origin(Origin::Xla)),
    (Looks::Path, "/jax_plugins/", Says::Origin(Origin::Xla)),
    (Looks::Path, "/jax_cuda", Says::Origin(Origin::Xla)),
    (Looks::Name, "libtensorflow", Says::Origin(Origin::TensorFlow)),
    (Looks::Name, "_pywrap_tensorflow", Says::Origin(Origin::TensorFlow)),
    (Looks::Path, "/tensorflow/", Says::Origin(Origin::TensorFlow)),
    (Looks::Path, "/cupy_backends/", Says::Origin(Origin::CuPy)),
    (Looks::Path, "/cupy/", Says::Origin(Origin::CuPy)),
    (Looks::Name, "libtriton", Says::Origin(Origin::Triton)),
    (Looks::Path, "/triton/", Says::Origin(Origin::Triton)),
    (Looks::Path, "/.triton/", Says::Origin(Origin::Triton)),
    (Looks::Name, "libffi", Says::Origin(Origin::CudaPython)),
    (Looks::Name, "_ctypes", Says::Origin(Origin::CudaPython)),
    (Looks::Name, "_cffi_backend", Says::Origin(Origin::CudaPython)),
    (Looks::Path, "/cuda/bindings/", Says::Origin(Origin::CudaPython)),
    (Looks::Path, "/cuda/core/", Says::Origin(Origin::CudaPython)),
    (Looks::Path, "/cuda/_", Says::Origin(Origin::CudaPython)),
    (Looks::Path, "/numba/", Says::Origin(Origin::CudaPython)),
    (Looks::Path, "/numba_cuda/", Says::Origin(Origin::CudaPython)),
    (Looks::Name, "libpython", Says::Origin(Origin::CudaPython)),
    (Looks::Name, "libc.so", Says::Nobody),
    (Looks::Name, "libc.musl", Says::Nobody),
    (Looks::Name, "libpthread", Says::Nobody),
    (Looks::Name, "ld-", Says::Nobody),
    (Looks::Name, "linux-vdso", Says::Nobody),
];

/// What the loaded file of that path says.
pub(super) fn of_file(path: &[u8]) -> Says {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let fits = |(looks, text, _): &&(Looks, &str, Says)| match looks {
        Looks::Name => name.starts_with(text.as_bytes()),
        Looks::Path => path.windows(text.len()).any(|part| part == text.as_bytes()),
    };
    RULES.iter().find(fits).map_or(Says::Origin(Origin::Other), |(_, _, says)| *says)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_as_they_are_installed_are_told() {
        for (path, says) in [
            ("/v/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", Says::PassesOn),
            ("/v/site-packages/torch/lib/libcudart-d0da41ae.so.11.0", Says::PassesOn),
            ("/run/user/1000/gpuheap/driver/libcuda.so.1", Says::PassesOn),
            ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06", Says::PassesOn),
            ("/v/site-packages/torch/lib/libc10_cuda.so", Says::Origin(Origin::PyTorch)),
            ("/v/site-packages/torch/lib/libtorch_cuda.so", Says::Origin(Origin::PyTorch)),
            ("/v/site-packages/torch/lib/libtorch_cuda_linalg.so", Says::Origin(Origin::PyTorch)),
            ("/v/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so", Says::Origin(Origin::Xla)),
            ("/v/site-packages/jaxlib/libjax_common.so", Says::Origin(Origin::Xla)),
            ("/v/site-packages/jaxlib/_jax.so", Says::Origin(Origin::Xla)),
            ("/v/site-packages/jax_cuda12_plugin/_solver.so", Says::Origin(Origin::Xla)),
            ("/v/site-packages/tensorflow/libtensorflow_cc.so.2", Says::Origin(Origin::TensorFlow)),
            ("/v/tensorflow/python/_pywrap_tensorflow_internal.so", Says::Origin(Origin::TensorFlow)),
            (
                "/v/site-packages/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so",
                Says::Origin(Origin::CuPy),
            ),
            ("/v/cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so", Says::Origin(Origin::CuPy)),
            ("/v/lib/python3.12/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so", Says::Origin(Origin::CudaPython)),
            ("/usr/lib/x86_64-linux-gnu/libffi.so.8", Says::Origin(Origin::CudaPython)),
            (
                "/v/site-packages/cuda/bindings/_bindings/cydriver.cpython-312-x86_64-linux-gnu.so",
                Says::Origin(Origin::CudaPython),
            ),
            ("/v/site-packages/nvidia/cublas/lib/libcublasLt.so.12", Says::Origin(Origin::CuBlas)),
            ("/v/site-packages/nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9", Says::Origin(Origin::CuDnn)),
            ("/v/site-packages/nvidia/cufft/lib/libcufft.so.11", Says::Origin(Origin::CuFft)),
            ("/v/site-packages/nvidia/cusparse/lib/libcusparse.so.12", Says::Origin(Origin::CuSparse)),
            ("/v/site-packages/cusparselt/lib/libcusparseLt.so.0", Says::Origin(Origin::CuSparse)),
            ("/v/site-packages/nvidia/cusolver/lib/libcusolverMg.so.11", Says::Origin(Origin::CuSolver)),
            ("/v/site-packages/nvidia/curand/lib/libcurand.so.10", Says::Origin(Origin::CuRand)),
            ("/v/site-packages/nvidia/nccl/lib/libnccl.so.2", Says::Origin(Origin::Nccl)),
            ("/v/site-packages/triton/_C/libtriton.so", Says::Origin(Origin::Triton)),
            ("/home/u/.triton/cache/ABC/cuda_utils.cpython-312-x86_64-linux-gnu.so", Says::Origin(Origin::Triton)),
            ("/usr/lib/libmine.so", Says::Origin(Origin::Other)),
            ("/v/site-packages/librmm/lib64/librmm.so", Says::Origin(Origin::Other)),
            ("/lib/x86_64-linux-gnu/libc.so.6", Says::Nobody),
            ("linux-vdso.so.1", Says::Nobody),
        ] {
            assert_eq!(of_file(path.as_bytes()), says, "{path}");
        }
    }

    /// A rule that an earlier one always wins over would say nothing.
    #[test]
    fn every_rule_decides_something() {
        for (number, (looks, text, _)) in RULES.iter().enumerate() {
            let hidden = RULES[..number].iter().any(|(before, earlier, _)| match (before, looks) {
                (Looks::Name, Looks::Name) => text.starts_with(earlier),
                (Looks::Path, Looks::Path) => text.contains(earlier),
                _ => false,
            });
            assert!(!hidden, "{text}");
        }
    }
}
