/* Holds memory of a device, and prints what CUDA and NVML say of it in this process. Arguments: the number of the device
   for CUDA, its number for NVML, then the bytes to allocate. Ends when its standard input does. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory1;

static int check(int code) { if (code) { printf("failed: %d\n", code); exit(1); } return code; }

int main(int count, char **arguments) {
    if (count < 4) return 2;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!driver || !nvml) { fprintf(stderr, "%s\n", dlerror()); return 3; }
#define CUDA(name) ((int (*)())dlsym(driver, #name))
#define NVML(name) ((int (*)())dlsym(nvml, #name))
    void *context, *device, *ballast;
    check(CUDA(cuInit)(0));
    check(CUDA(cuDevicePrimaryCtxRetain)(&context, atoi(arguments[1])));
    check(CUDA(cuCtxSetCurrent)(context));
    check(NVML(nvmlInit_v2)());
    check(NVML(nvmlDeviceGetHandleByIndex_v2)(atoi(arguments[2]), &device));
    int (*allocate)(void *, size_t) = (int (*)(void *, size_t))dlsym(driver, "cuMemAlloc_v2");
    for (int i = 3; i < count; i++) printf("allocate: %d\n", allocate(&ballast, strtoull(arguments[i], 0, 10)));
    size_t free_bytes = 0, total = 0;
    memory1 memory;
    check(CUDA(cuMemGetInfo_v2)(&free_bytes, &total));
    check(NVML(nvmlDeviceGetMemoryInfo)(device, &memory));
    printf("CUDA total %zu free %zu, NVML total %llu free %llu used %llu\nholds\n", total, free_bytes, memory.total,
           memory.free, memory.used);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
