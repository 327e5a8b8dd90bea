/* Memory that processes open of each other. Each line asks for one thing, each answer is one line. */

static struct { ptr address; size_t bytes; } shared[64];
static int shared_count;

static void add_shared(const char *what, int code, ptr address) {
    size_t bytes = 0;
    ptr begin = 0;
    if (code == 0) {
        CALL(cuMemGetAddressRange, cuMemGetAddressRange_v2, (ptr *, size_t *, ptr), &begin, &bytes, address + 1);
        shared[shared_count].address = address;
        shared[shared_count++].bytes = bytes;
    }
    printf("%s: %d, %zu at %zu\n", what, code, bytes, (size_t)(begin - address));
}

/* As many bytes as a piece of a large allocation may have. */
#define SPOT (2 * MIB)

static void shares(void) {
    char line[256], word[16], text[160];
    start();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long first = 0, second = 0;
        ipc_handle handle;
        ptr address = 0;
        word[0] = text[0] = 0;
        sscanf(line, "%15s %159s", word, text);
        sscanf(line, "%*s %ld %ld", &first, &second);
        if (!strcmp(word, "alloc")) {
            int code = CALL(cuMemAlloc, cuMemAlloc_v2, (ptr *, size_t), &address, (size_t)first);
            add_shared("alloc", code, address);
        } else if (!strcmp(word, "export")) {
            unsigned char capable = 9;
            int code = CALL(cuIpcGetMemHandle, cuIpcGetMemHandle, (ipc_handle *, ptr), &handle, shared[first].address + (size_t)second);
            CALL(cuPointerGetAttribute, cuPointerGetAttribute, (void *, int, ptr), &capable, 10, shared[first].address + (size_t)second);
            printf("export: %d %d ", code, capable);
            for (int i = 0; i < 64 && code == 0; i++) printf("%02x", (unsigned char)handle.bytes[i]);
            puts("");
        } else if (!strcmp(word, "open")) {
            for (int i = 0; i < 64; i++) {
                unsigned byte = 0;
                sscanf(text + 2 * i, "%2x", &byte);
                handle.bytes[i] = (char)byte;
            }
            int code = CALL(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (ptr *, ipc_handle, unsigned), &address, handle, 1);
            add_shared("open", code, address);
        } else if (!strcmp(word, "same")) {
            printf("same: %d\n", shared[first].address == shared[second].address);
        } else if (!strcmp(word, "fill")) {
            int code = CALL(cuMemsetD8, cuMemsetD8_v2, (ptr, unsigned char, size_t), shared[first].address, (unsigned char)second, shared[first].bytes);
            /* It comes back at once; another process has to be told when it is done. */
            SAY("fill", code ? code : CALL(cuCtxSynchronize, cuCtxSynchronize, (ptr), context));
        } else if (!strcmp(word, "check")) {
            unsigned char *found = malloc(shared[first].bytes);
            size_t wrong = 0;
            int code = CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), found, shared[first].address, shared[first].bytes);
            for (size_t i = 0; i < shared[first].bytes && code == 0; i++) wrong += found[i] != (unsigned char)second;
            free(found);
            printf("check: %d, %zu wrong\n", code, wrong);
        } else if (!strcmp(word, "mark") || !strcmp(word, "marked")) {
            /* A number at the beginning of each unit, so that pieces in a wrong order are seen. */
            size_t wrong = 0;
            int code = 0;
            for (size_t at = 0; at < shared[first].bytes && code == 0; at += SPOT) {
                size_t number = at / SPOT + (size_t)second, found = number;
                if (word[4]) code = CALL(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, ptr, size_t), &found, shared[first].address + at, sizeof found);
                else code = CALL(cuMemcpyHtoD, cuMemcpyHtoD_v2, (ptr, const void *, size_t), shared[first].address + at, &number, sizeof number);
                wrong += found != number;
            }
            printf("%s: %d, %zu wrong\n", word, code, wrong);
        } else if (!strcmp(word, "close")) {
            SAY("close", CALL(cuIpcCloseMemHandle, cuIpcCloseMemHandle, (ptr), shared[first].address));
        } else if (!strcmp(word, "free")) {
            SAY("free", CALL(cuMemFree, cuMemFree_v2, (ptr), shared[first].address));
        } else if (!strcmp(word, "reset")) {
            SAY("reset", CALL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (int), 0));
        } else if (!strcmp(word, "charged")) {
            uint64_t (*bytes)(uint32_t, int) = dlsym(library, "gpuheap_shim_bytes");
            printf("charged: %llu\n", (unsigned long long)bytes(9, -1));
        } else if (!strcmp(word, "control")) {
            int (*control)(const char *) = dlsym(library, "gpuheap_fake_control");
            SAY("control", control(line + 8));
        } else printf("what is %s\n", word);
        fflush(stdout);
    }
}
