/* Threads, children, budgets, and what is killed. */

static pthread_barrier_t together;

static void *one_of_many(void *none) {
    void *found = NULL;
    int status = -1;
    ptr a = 0;
    (void)none;
    pthread_barrier_wait(&together);
    if (get_proc("cuMemAlloc", &found, 12000, 1, &status) != 0 || found != dlsym(library, "cuMemAlloc_v2")) return (void *)1;
    if (CALL(cuInit, cuInit, (unsigned), 0) != 0) return (void *)2;
    if (CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (ptr *, int), &context, 0) != 0) return (void *)3;
    if (CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context) != 0) return (void *)4;
    for (int i = 0; i < 100; i++) {
        if (CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 1000) != 0) return (void *)5;
        if (i % 10 && CALL(cuMemFree, cuMemFree_v2, (ptr), a) != 0) return (void *)6;
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[64];
    pthread_barrier_init(&together, NULL, 64);
    for (int i = 0; i < 64; i++) pthread_create(&all[i], NULL, one_of_many, NULL);
    for (int i = 0; i < 64; i++) {
        void *code = NULL;
        pthread_join(all[i], &code);
        if (code != NULL) { printf("thread failed at %d\n", (int)(intptr_t)code); exit(1); }
    }
    charged("threads");
}

/* A child has no driver, and what the parent holds is not the child's. */
static void forked(void) {
    ptr a = 0;
    start();
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 3 * MIB));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        SAY("child init", CALL(cuInit, cuInit, (unsigned), 0));
        SAY("child alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 3 * MIB));
        SAY("child free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
        charged("child");
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("%d\n", status);
    charged("parent");
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
}

/* Allocates pieces until there are no more, says how many, and waits for the end of standard input. */
static void hold(size_t piece) {
    size_t count = 0, free_bytes = 0, total = 0;
    ptr a = 0;
    int code;
    start();
    while ((code = CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, piece)) == 0) count++;
    CALL(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *), &free_bytes, &total);
    printf("held %zu, then %d; free %zu of %zu\n", count, code, free_bytes, total);
    fflush(stdout);
    while (getchar() != EOF) {}
}

/* Allocates and frees until it is killed. */
static void churn(void) {
    ptr held[16] = {0};
    start();
    fflush(stdout);
    for (unsigned i = 0;; i = i * 1664525 + 1013904223) {
        ptr *one = &held[i >> 28];
        if (*one) { CALL(cuMemFree, cuMemFree_v2, (ptr), *one); *one = 0; }
        else if (CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), one, MIB) != 0) *one = 0;
    }
}

/* All kinds within a budget of 64 MiB. */
static void budget(void) {
    ptr a = 0, b = 0;
    uint64_t handle = 0;
    prop here;
    memset(&here, 0, sizeof here);
    here.kind = here.place.kind = 1;
    start();
    info();
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 40 * MIB));
    SAY("create more than is left", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, 26 * MIB, &here, 0));
    SAY("create", CALL(cuMemCreate, cuMemCreate, (uint64_t *, size_t, const prop *, uint64_t), &handle, 10 * MIB, &here, 0));
    SAY("ordered", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &b, 1000, 0));
    info();
    SAY("release", CALL(cuMemRelease, cuMemRelease, (uint64_t), handle));
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("ordered", CALL(cuMemAllocAsync, cuMemAllocAsync, (ptr *, size_t, ptr), &b, 1000, 0));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 33 * MIB));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 32 * MIB));
    info();
    charged("budget");
}

/* Two copies of the library in one process: each counts, and together they stay within the budget. */
static void twice(void) {
    ptr a = 0;
    start();
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 3 * MIB));
    void *first = library;
    library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (library == NULL) { fprintf(stderr, "%s\n", dlerror()); exit(3); }
    printf("%d\n", library != first);
    start();
    SAY("more than is left", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 2 * MIB));
    SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, MIB));
    charged("second");
    library = first;
    charged("first");
    SAY("nothing is left", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 1));
}

