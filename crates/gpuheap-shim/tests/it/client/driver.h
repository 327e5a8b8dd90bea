/* How the client finds the driver's functions and calls them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

typedef uintptr_t ptr;
typedef struct { uint32_t kind; int32_t id; } location;
typedef struct { uint32_t kind, types; location place; void *security; uint8_t compression, rdma; uint16_t usage; uint8_t reserved[4]; } prop;
typedef struct { location place; uint32_t flags; } access_desc;
typedef struct { uint32_t kind, types; location place; void *security; size_t max; uint16_t usage; uint8_t reserved[54]; } pool_props;
typedef struct { pool_props pool; const access_desc *map; size_t count, bytes; ptr address; } node_params;
typedef struct { size_t width, height; uint32_t format, channels; } array_desc;
typedef struct { char bytes[64]; } ipc_handle;

static void *library;
/* 0: by exported names; 1, 2: by cuGetProcAddress, meaning the context's or the thread's default stream by 0 */
static int way;
static int version = 13000;
static int (*get_proc)(const char *, void **, int, uint64_t, int *);

static void *find(const char *base, const char *symbol) {
    void *found = NULL;
    int status = -1;
    if (way == 0) return dlsym(library, symbol);
    if (get_proc(base, &found, version, (uint64_t)way, &status) != 0 || status != 0) return NULL;
    return found;
}

static void *need(const char *base, const char *symbol) {
    void *found = find(base, symbol);
    if (found == NULL) { fprintf(stderr, "no %s\n", symbol); exit(3); }
    return found;
}

#define CALL(base, symbol, types, ...) (((int (*) types)need(#base, #symbol))(__VA_ARGS__))
#define SAY(text, code) printf("%s: %d\n", text, code)

/* What is charged, by kind: on device 1, on device 0, on the host. */
static void charged(const char *when) {
    uint64_t (*bytes)(uint32_t, int) = dlsym(library, "gpuheap_shim_bytes");
    uint64_t (*mistakes)(void) = dlsym(library, "gpuheap_shim_mistakes");
    if (bytes == NULL) return;
    fprintf(stderr, "%s:", when);
    static const char *const places[] = {"host", "", "other"};
    for (int device = 1; device >= -1; device--)
        for (uint32_t kind = 0; kind < 11; kind++)
            if (bytes(kind, device)) fprintf(stderr, " %s%u=%llu", places[device + 1], kind, (unsigned long long)bytes(kind, device));
    fprintf(stderr, mistakes() ? " MISTAKES\n" : "\n");
}

static ptr context;

static void start(void) {
    int count = 0;
    SAY("init", CALL(cuInit, cuInit, (unsigned), 0));
    SAY("count", CALL(cuDeviceGetCount, cuDeviceGetCount, (int *), &count));
    SAY("retain", CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (ptr *, int), &context, 0));
    SAY("current", CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context));
}

