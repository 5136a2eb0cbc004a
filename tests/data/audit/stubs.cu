// Kernels of every kind that tests/unit/test_audit_kernels.py tells apart.
//   nvcc --frandom-seed=0 --compress-mode=size -fatbin -o stubs.fatbin stubs.cu -gencode arch=compute_120a,code=[sm_120a,compute_120a]
//     -gencode arch=compute_120f,code=sm_120f -gencode arch=compute_90,code=sm_90
//   nvcc --frandom-seed=0 --compress-mode=speed -Xfatbin=-compress-all -fatbin -o stubs-lz4.fatbin stubs.cu -arch=sm_120a
#include <cstdio>

namespace real {
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
__global__ void first(int* x, const int* y) { if (threadIdx.x == 0) atomicAdd(x, *y); }
__global__ void asserts(float* x, int n) { if (n < 0) { printf("negative\n"); asm volatile("trap;"); } x[n] = 1; }
}  // namespace real

namespace hollow {
__global__ void empty(float* x) {}
__global__ void waits(float* x) { __syncthreads(); }
__global__ void returns_early(float* x, int n) { if (n < 0) return; __syncthreads(); }
template <typename T, int N> __global__ void guarded(T* x) {
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
  for (int i = 0; i < N; i++) x[i] = i;
#endif
}
template __global__ void guarded<float, 3>(float*);
template __global__ void guarded<int, 4>(int*);
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
__global__ void dependent(float* x) { asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;"); }
#endif
}  // namespace hollow

namespace stops {
__global__ void trap(float* x) { asm volatile("trap;"); }
__global__ void complains(float* x) {
  if (threadIdx.x == 0) printf("ERROR : Arch conditional MMA instruction used without targeting it %d\n", blockIdx.x);
  asm volatile("brkpt;");
}
}  // namespace stops
