/* How long the sampler takes for one row, for vocabularies of real size. The row is shaped like a language model's: a
 * few likely tokens above a broad bulk. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "../../src/engine/internal.h"

enum { ROUNDS = 200 };

static uint64_t rng = 9;
static double random_unit(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(rng >> 11) * 0x1p-53;
}
static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(void) {
    const struct {
        const char *name;
        sampling s;
        bool logprobs;
        int32_t n_top;
    } kinds[] = {{"greedy", {.top_p = 1}, false, 0},
                 {"greedy, 20 logprobs", {.top_p = 1}, true, 20},
                 {"temperature", {.temperature = 0.8f, .top_p = 1}, false, 0},
                 {"top_p 0.95", {.temperature = 0.8f, .top_p = 0.95f}, false, 0},
                 {"top_k 40", {.temperature = 0.8f, .top_p = 1, .top_k = 40}, false, 0},
                 {"top_p, top_k, min_p", {.temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .min_p = 0.05f}, false, 0}};
    const int32_t vocabs[] = {49152, 151936};
    for (size_t v = 0; v < COUNT(vocabs); v++) {
        for (int flat = 0; flat < 2; flat++) {
            sampler_scratch w;
            sampler_scratch_init(&w, vocabs[v], NULL);
            float *x = mem_alloc((size_t)vocabs[v] * sizeof *x), *row = mem_alloc((size_t)vocabs[v] * sizeof *x);
            for (int32_t i = 0; i < vocabs[v]; i++)
                x[i] = (float)((flat ? 0.5 : 2.5) * sqrt(-2 * log(1 - random_unit())) *
                               cos(6.283185307179586 * random_unit()));
            if (!flat)
                for (int i = 0; i < 200; i++) x[(int32_t)(random_unit() * vocabs[v])] += (float)(22 * random_unit());
            for (size_t k = 0; k < COUNT(kinds); k++) {
                double us[ROUNDS];
                for (int i = 0; i < ROUNDS; i++) {
                    sampler_out out;
                    memcpy(row, x, (size_t)vocabs[v] * sizeof *x);
                    uint64_t t0 = clock_ns();
                    sampler_pick(&(sampler_in){.logits = row,
                                               .s = &kinds[k].s,
                                               .seed = 1,
                                               .step = (uint64_t)i,
                                               .logprobs = kinds[k].logprobs,
                                               .n_top = kinds[k].n_top},
                                 &w, &out);
                    us[i] = (double)(clock_ns() - t0) / 1e3;
                }
                qsort(us, ROUNDS, sizeof *us, by_size);
                printf("vocabulary %6d %-7s %-22s %7.1f us\n", vocabs[v], flat ? "flat" : "peaked", kinds[k].name,
                       us[ROUNDS / 2]);
            }
            free(x);
            free(row);
            sampler_scratch_deinit(&w);
        }
    }
    return 0;
}
