/* A ledger that is cut short under a program, and signals that are not about it. */
#include <fcntl.h>
#include <sys/mman.h>

static int alloc(ptr *a, size_t bytes) { return CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), a, bytes); }

static void *works_on(void *none) {
    ptr a = 0;
    (void)none;
    if (CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context) != 0) return (void *)1;
    for (int i = 0; i < 200; i++) {
        if (alloc(&a, 1000) != 0) return (void *)2;
        if (i == 100) pthread_barrier_wait(&together);
        if (CALL(cuMemFree, cuMemFree_v2, (ptr), a) != 0) return (void *)3;
    }
    return NULL;
}

/* Within 64 MiB: 40, then the ledger is cut to that length while threads use it, then what is left of the budget. */
static void cuts(long length) {
    ptr a = 0, b = 0;
    pthread_t all[8];
    start();
    SAY("alloc", alloc(&a, 40 * MIB));
    pthread_barrier_init(&together, NULL, 9);
    for (int i = 0; i < 8; i++) pthread_create(&all[i], NULL, works_on, NULL);
    SAY("cut", truncate(getenv("GPUHEAP_LEDGER"), length));
    pthread_barrier_wait(&together);
    for (int i = 0; i < 8; i++) {
        void *code = NULL;
        pthread_join(all[i], &code);
        if (code != NULL) printf("thread failed at %d\n", (int)(intptr_t)code);
    }
    SAY("more than is left", alloc(&b, 25 * MIB));
    SAY("what is left", alloc(&b, 24 * MIB));
    info();
    SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), a));
    SAY("as much again", alloc(&a, 40 * MIB));
    SAY("nothing is left", alloc(&b, 4 * MIB));
}

static void own_handler(int signal) { _exit(signal == SIGBUS ? 42 : 43); }
static void own_handler_told(int signal, siginfo_t *told, void *context) {
    (void)context;
    _exit(signal == SIGBUS && told->si_addr != NULL ? 44 : 45);
}

/* The signal for something else: "default", "ignored", "handled", "told", each for a fault, or "sent" after it. */
static void faults(const char *how) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    if (strstr(how, "ignored")) action.sa_handler = SIG_IGN;
    if (strstr(how, "handled")) action.sa_handler = own_handler;
    if (strstr(how, "told")) { action.sa_sigaction = own_handler_told; action.sa_flags = SA_SIGINFO; }
    sigaction(SIGBUS, &action, NULL);
    start();
    fflush(stdout);
    if (strstr(how, "sent")) { raise(SIGBUS); _exit(7); }
    int file = open(getenv("CLIENT_FILE"), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0) _exit(8);
    volatile char *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (ftruncate(file, 0) != 0) _exit(9);
    _exit(memory[0]);
}
