/* Lets libraries take memory: `askers STEP…`, a step being
     FILE=BYTES[,MORE]   FILE takes BYTES, with MORE bytes of stack in between; it stays loaded
     close               the last file is closed
     own=BYTES           the program takes memory itself
     threads=FILE        eight threads let FILE take 1000 times one byte
     free                what was taken last is given back
     die                 the program kills itself
   Then it says so and waits until its input ends. */
#include "driver.h"

static void *opened;
static ptr last;

static void take(const char *file, size_t bytes, size_t more) {
    opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) { fprintf(stderr, "%s\n", dlerror()); exit(3); }
    int (*asks)(ptr *, size_t, size_t) = (int (*)(ptr *, size_t, size_t))dlsym(opened, "take");
    int code = asks(&last, bytes, more);
    if (code) printf("%s: %d\n", file, code);
}

static void *thread(void *file) {
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, (ptr), context);
    for (int time = 0; time < 1000; time++) {
        void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        ptr address = 0;
        if (((int (*)(ptr *, size_t, size_t))dlsym(handle, "take"))(&address, 1, (size_t)(time % 3) * 64)) exit(4);
        if (time % 2) CALL(cuMemFree, cuMemFree_v2, (ptr), address);
    }
    return NULL;
}

int main(int count, char **steps) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    start();
    for (int step = 1; step < count; step++) {
        char *name = steps[step], *value = strchr(name, '=');
        if (value) *value++ = 0;
        if (!strcmp(name, "close")) dlclose(opened);
        else if (!strcmp(name, "die")) raise(SIGKILL);
        else if (!strcmp(name, "free")) SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), last));
        else if (!strcmp(name, "own")) SAY("own", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &last, strtoul(value, NULL, 10)));
        else if (!strcmp(name, "threads")) {
            pthread_t threads[8];
            for (int number = 0; number < 8; number++) pthread_create(&threads[number], NULL, thread, value);
            for (int number = 0; number < 8; number++) pthread_join(threads[number], NULL);
        } else {
            char *more = strchr(value, ',');
            take(name, strtoul(value, NULL, 10), more ? strtoul(more + 1, NULL, 10) : 0);
        }
    }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
