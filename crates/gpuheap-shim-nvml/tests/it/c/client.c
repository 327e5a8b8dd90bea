/* Asks for what a program asks NVML, and prints the answers. Ways to the library: CLIENT_LIBRARY is its name,
   CLIENT_DEEP and CLIENT_GLOBAL how it is opened, CLIENT_REOPEN closes it and opens it again; LINKED is a program that
   is linked with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } process2;

static void *library;

#ifdef LINKED
int nvmlInit_v2(void), nvmlShutdown(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, memory1 *), nvmlDeviceGetMemoryInfo_v2(void *, memory2 *);
int nvmlDeviceGetBAR1MemoryInfo(void *, memory1 *), nvmlDeviceGetTomorrow(void *, int);
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, process2 *);
#define FIND(name) name
static void open_library(void) {}
#else
#define FIND(name) ((int (*)())find(#name))
static int lacks() { return 13; }
static void *find(const char *name) { void *found = dlsym(library, name); return found ? found : (void *)lacks; }
static void open_library(void) {
    const char *name = getenv("CLIENT_LIBRARY");
    int flags = RTLD_NOW;
    if (getenv("CLIENT_DEEP")) flags |= RTLD_DEEPBIND;
    if (getenv("CLIENT_GLOBAL")) flags |= RTLD_GLOBAL;
    library = dlopen(name ? name : "libnvidia-ml.so.1", flags);
    if (library && getenv("CLIENT_REOPEN")) {
        dlclose(library);
        library = dlopen(name ? name : "libnvidia-ml.so.1", flags);
    }
    if (!library) { fprintf(stderr, "%s\n", dlerror()); exit(3); }
}
#endif

static void print1(const char *what, int code, memory1 m) {
    printf("%s: %d total %llu free %llu used %llu\n", what, code, m.total, m.free, m.used);
}

static void sizes(unsigned index) {
    void *device = 0;
    printf("device %u: %d\n", index, FIND(nvmlDeviceGetHandleByIndex_v2)(index, &device));
    memory1 first = {1, 2, 3}, bar = {0};
    int code = FIND(nvmlDeviceGetMemoryInfo)(device, &first);
    print1("memory", code, first);
    memory2 second = {.version = sizeof second | 2u << 24};
    code = FIND(nvmlDeviceGetMemoryInfo_v2)(device, &second);
    printf("memory, second form: %d total %llu reserved %llu free %llu used %llu version %x\n", code, second.total,
           second.reserved, second.free, second.used, second.version);
    code = FIND(nvmlDeviceGetBAR1MemoryInfo)(device, &bar);
    print1("BAR1", code, bar);
}

static void oddities(void) {
    void *device = 0;
    memory1 first = {1, 2, 3};
    int code = FIND(nvmlDeviceGetMemoryInfo)((void *)&first, &first);
    print1("before the start", code, first);
    printf("start: %d\n", FIND(nvmlInit_v2)());
    FIND(nvmlDeviceGetHandleByIndex_v2)(0, &device);
    code = FIND(nvmlDeviceGetMemoryInfo)((void *)&first, &first);
    print1("no such device", code, first);
    printf("null: %d %d\n", FIND(nvmlDeviceGetMemoryInfo)(device, (memory1 *)0),
           FIND(nvmlDeviceGetMemoryInfo_v2)(device, (memory2 *)0));
    memory2 second = {7, 1, 2, 3, 4};
    code = FIND(nvmlDeviceGetMemoryInfo_v2)(device, &second);
    printf("unknown form: %d %u %llu %llu %llu %llu\n", code, second.version, second.total, second.reserved,
           second.free, second.used);
    struct { unsigned version; unsigned char rest[44]; } third = {48 | 3u << 24, {0}};
    code = FIND(nvmlDeviceGetMemoryInfo_v2)(device, (memory2 *)&third);
    int same = 0;
    for (int i = 0; i < 44; i++) same += third.rest[i] == 0x55;
    printf("later form: %d, %d bytes as they were given\n", code, same);
    process2 row = {0};
    unsigned count = 1;
    code = FIND(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, &row);
    printf("processes: %d %u own %d bytes %llu\n", code, count, row.pid == (unsigned)getpid(), row.bytes);
    printf("tomorrow: %d\n", FIND(nvmlDeviceGetTomorrow)(device, 6));
}

int main(int count, char **arguments) {
    open_library();
    if (count > 1 && !strcmp(arguments[1], "oddities")) {
        oddities();
    } else if (count > 1 && !strcmp(arguments[1], "forked")) {
        printf("start: %d\n", FIND(nvmlInit_v2)());
        sizes(0);
        fflush(stdout);
        int status = 0;
        pid_t child = fork();
        if (child == 0) { sizes(0); fflush(stdout); _exit(0); }
        waitpid(child, &status, 0);
        printf("child: %d\n", status);
    } else {
        printf("start: %d\n", FIND(nvmlInit_v2)());
        sizes(0);
        sizes(1);
        printf("end: %d\n", FIND(nvmlShutdown)());
    }
    return 0;
}
