/* SPDX-License-Identifier: MIT */
/* models.h: where tests find the real models that scripts/fetch-model.sh unpacks. A test whose
 * model is absent prints SKIP and the reason and ends with KVS_TEST_SKIP. */
#ifndef KVS_TESTS_SUPPORT_MODELS_H
#define KVS_TESTS_SUPPORT_MODELS_H

#include <stdio.h>
#include <stdlib.h>

#define KVS_TEST_SKIP    77
#define KVS_TEST_SMOLLM2 "SmolLM2-135M-Instruct.Q4_1.gguf"
#define KVS_TEST_GEMMA3  "gemma-3-270m-q4_k_m.gguf"

/* Writes the path of a model file of that name to path[n]; 0 and a SKIP line if it is not there. */
static inline int kvs_test_model(const char *file, char *path, size_t n)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int len = -1;
    if (cache && cache[0] == '/') {
        len = snprintf(path, n, "%s/kvstate/models/%s", cache, file);
    } else if (home) {
        len = snprintf(path, n, "%s/.cache/kvstate/models/%s", home, file);
    }
    if (len < 0 || (size_t)len >= n) {
        printf("SKIP: neither XDG_CACHE_HOME nor HOME says where models are\n");
        return 0;
    }
    FILE *f = fopen(path, "rb");
    if (!f) {
        printf("SKIP: %s is absent; scripts/fetch-model.sh gets it\n", path);
        return 0;
    }
    (void)fclose(f);
    return 1;
}

#endif
