/* A program that uses the driver. It prints what it is told. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t ptr;
typedef struct { int type, handle_types, place, id; void *more; unsigned char flags[8]; } prop;

static void *library;
static int (*get_proc)(const char *, void **, int, uint64_t, int *);

/* By the exported symbol, or as runtime libraries do. */
static void *find(const char *base, const char *symbol) {
    void *found = NULL;
    int status = -1;
    if (getenv("CLIENT_ASKS") == NULL) found = dlsym(library, symbol);
    else if (get_proc(base, &found, 12000, 0, &status) != 0) found = NULL;
    if (found == NULL) { fprintf(stderr, "%s is not there\n", symbol); exit(3); }
    return found;
}

#define CALL(base, symbol, ...) ((int (*)())find(#base, #symbol))(__VA_ARGS__)
#define MUST(call) do { int code = (call); if (code) { fprintf(stderr, #call ": %d\n", code); exit(4); } } while (0)

static void use(int device) {
    ptr context = 0;
    MUST(CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, &context, device));
    MUST(CALL(cuCtxSetCurrent, cuCtxSetCurrent, context));
}

static int take(size_t bytes) {
    ptr address = 0;
    return CALL(cuMemAlloc, cuMemAlloc_v2, &address, bytes);
}

int main(int count, char **arguments) {
    const char *name = getenv("CLIENT_LIBRARY"), *what = count > 1 ? arguments[1] : "";
    library = dlopen(name ? name : "libcuda.so.1", RTLD_NOW);
    if (library == NULL) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    *(void **)&get_proc = dlsym(library, "cuGetProcAddress_v2");
    /* One that has the library and never begins. */
    if (!strcmp(what, "loads")) return 9;
    MUST(CALL(cuInit, cuInit, 0));
    use(0);
    if (!strcmp(what, "hold")) {
        /* Pieces until there are no more; then it waits for the end of its input. */
        size_t held = 0, left = 0, all = 0;
        int code;
        while ((code = take((size_t)atol(arguments[2]))) == 0) held++;
        MUST(CALL(cuMemGetInfo, cuMemGetInfo_v2, &left, &all));
        printf("held %zu, then %d; free %zu of %zu\n", held, code, left, all);
    } else if (!strcmp(what, "once")) {
        printf("once %d\n", take((size_t)atol(arguments[2])));
    } else if (!strcmp(what, "kinds")) {
        ptr handle = 0, address = 0;
        prop here;
        memset(&here, 0, sizeof here);
        here.type = here.place = 1;
        printf("alloc %d\n", take(40 << 20));
        printf("create %d\n", CALL(cuMemCreate, cuMemCreate, &handle, (size_t)(26 << 20), &here, (uint64_t)0));
        printf("ordered %d\n", CALL(cuMemAllocAsync, cuMemAllocAsync, &address, (size_t)1000, (void *)0));
        printf("alloc %d\n", take(24 << 20));
    } else if (!strcmp(what, "devices")) {
        printf("alloc %d\n", take(4 << 20));
        use(1);
        printf("alloc %d\n", take(6 << 20));
    } else return 5;
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
