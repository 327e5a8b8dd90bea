/* A library that wants memory, or, with RUNTIME, the runtime library that others ask for it. With DIRECT it has a runtime
   of its own inside and asks the driver itself. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int (*allocate)(uintptr_t *, size_t);

#define APART __attribute__((noinline, noclone))

/* Frames that are of no fixed size: the same call from here comes at different distances. */
static APART int ask_driver(uintptr_t *address, size_t bytes, size_t more) {
    volatile char *room = alloca(more + 16);
    room[0] = 1;
    allocate driver = (allocate)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    int code = driver(address, bytes);
    return code + (room[0] - 1);
}

static APART int pass_on(uintptr_t *address, size_t bytes, size_t more) {
    int code = ask_driver(address, bytes, more);
    __asm__ volatile("" ::: "memory");
    return code;
}

int cudaMalloc(uintptr_t *address, size_t bytes, size_t more) {
    int code = pass_on(address, bytes, more);
    __asm__ volatile("" ::: "memory");
    return code;
}

#ifndef RUNTIME
int take(uintptr_t *address, size_t bytes, size_t more) {
#ifdef DIRECT
    int code = pass_on(address, bytes, more);
#else
    int (*runtime)(uintptr_t *, size_t, size_t) = (int (*)(uintptr_t *, size_t, size_t))dlsym(dlopen("libcudart.so.12", RTLD_NOW), "cudaMalloc");
    int code = runtime(address, bytes, more);
#endif
    __asm__ volatile("" ::: "memory");
    return code;
}
#endif
