/* A program that uses the driver as programs in C do. It prints what it is told, never an address, so that two runs can be
   compared; with the shim in front it says on standard error what is charged. */
#include "driver.h"

#include "calls.h"
#include "moves.h"
#include "wanders.h"
#include "alike.h"
#include "contexts.h"
#include "processes.h"
#include "cuts.h"
#include "shares.h"
#include "sleeps.h"
#include "stress.h"

int main(int count, char **arguments) {
    const char *what = arguments[1], *name = getenv("CLIENT_LIBRARY");
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    library = dlopen(name ? name : "libcuda.so.1", RTLD_NOW | (getenv("CLIENT_DEEP") ? RTLD_DEEPBIND : 0));
    if (library == NULL) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    if (getenv("CLIENT_REOPEN")) { dlclose(library); library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); if (library == NULL) return 4; }
    way = getenv("CLIENT_WAY") ? atoi(getenv("CLIENT_WAY")) : 0;
    *(void **)&get_proc = dlsym(library, "cuGetProcAddress_v2");
    if (way) {
        /* As runtime libraries do: the function that looks functions up is looked up itself. */
        void *own = NULL;
        int status = -1;
        if (get_proc("cuGetProcAddress", &own, version, 1, &status) != 0 || own == NULL) return 5;
        *(void **)&get_proc = own;
    }
    if (!strcmp(what, "calls")) calls();
    else if (!strcmp(what, "resolve")) resolve(arguments[2]);
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "forked")) forked();
    else if (!strcmp(what, "hold")) hold((size_t)atol(arguments[2]));
    else if (!strcmp(what, "churn")) churn();
    else if (!strcmp(what, "budget")) budget();
    else if (!strcmp(what, "nested")) nested();
    else if (!strcmp(what, "stress")) stress();
    else if (!strcmp(what, "sleeps")) sleeps();
    else if (!strcmp(what, "large")) large(arguments[2] != NULL);
    else if (!strcmp(what, "mapped-twice")) mapped_twice();
    else if (!strcmp(what, "frees")) frees();
    else if (!strcmp(what, "hot")) hot(arguments[2]);
    else if (!strcmp(what, "graphs")) graphs(arguments[2]);
    else if (!strcmp(what, "contexts")) contexts(arguments[2]);
    else if (!strcmp(what, "peers")) peers(arguments[2]);
    else if (!strcmp(what, "turns")) turns(arguments[2]);
    else if (!strcmp(what, "alike")) alike(arguments[2]);
    else if (!strcmp(what, "wanders")) wanders(arguments[2]);
    else if (!strcmp(what, "repeats")) repeats(arguments[2]);
    else if (!strcmp(what, "moves")) moves(arguments[2], (unsigned)atoi(arguments[3]));
    else if (!strcmp(what, "shares")) shares();
    else if (!strcmp(what, "twice")) twice();
    else if (!strcmp(what, "cuts")) cuts(atol(arguments[2]));
    else if (!strcmp(what, "faults")) faults(arguments[2]);
    else if (!strcmp(what, "devices")) devices();
    else if (!strcmp(what, "exec")) {
        ptr a = 0;
        start();
        SAY("alloc", CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &a, 3 * MIB));
        charged("before");
        fflush(stdout);
        execl("/proc/self/exe", "client", "hold", arguments[2], (char *)NULL);
        return 6;
    } else return 2;
    (void)count;
    return 0;
}
