/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt.c - trains GPT-2 on a text, as bytes or as GPT-2's tokens, and continues a prompt.
 *
 *   gpt -g 2 --data FILE     a small network from the start; docs/models.md: the weights of GPT-2
 */
#include "models/generate.h"
#include "models/gpt.h"

#include <math.h>
#include <stdlib.h>

typedef struct program {
    ls_train_flags flags;
    gpt_config config;
    const char *vocab, *merges;
    bpe *tokens;
    int64_t *ids; /* of the text */
    generation text;
    gpt net;
    ls_tensor *loss;
} program;

/* Samples of `context` tokens each; their targets are the tokens one further. The last tenth of
 * the text is the test set. */
static ls_status open_data(program *p, ls_run *run)
{
    const int64_t t = p->config.context;
    const ls_field x = {"x", LS_I64, 1, {t}, 0}, y = {"y", LS_I64, 1, {t}, 0};
    ls_dataset *set;
    size_t n;

    LS_TRY(bpe_open(p->vocab, p->merges, &p->tokens));
    LS_TRY(bpe_encode_file(p->tokens, p->flags.data, &p->ids, &n));
    for (int test = 0; test < 2; test++) {
        const size_t begin = test ? n - n / 10 : 0, end = test ? n : n - n / 10;
        const size_t count = end > begin ? (end - begin - 1) / (size_t)t : 0;
        const ls_array arrays[] = {{x, p->ids + begin}, {y, p->ids + begin + 1}};

        LS_TRY(ls_dataset_from_arrays(arrays, 2, count, &set));
        LS_TRY(test ? ls_run_test_on_take(run, set) : ls_run_train_on_take(run, set));
    }
    return LS_OK;
}

/* The loss of a batch, in training and in evaluations. */
static ls_status add_loss(void *arg, ls_run *run, const ls_batch *batch)
{
    program *p = arg;
    ls_tape *tape = ls_run_tape(run);
    ls_tensor *targets = ls_reshape(tape, batch->y, 1, (const int64_t[]){-1});

    p->loss = ls_cross_entropy(tape, gpt_forward(&p->net, tape, batch->x), targets);
    ls_run_add(run, "perplexity", p->loss, (double)batch->rows); /* exp of the mean */
    return LS_OK;
}

static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    const ls_group_options no_decay = {.size = sizeof(no_decay), .no_weight_decay = 1};
    program *p = arg;
    ls_run_state state;
    ls_batch batch;

    LS_TRY(open_data(p, run));
    p->config.vocab = bpe_count(p->tokens);
    gpt_create(ls_run_model(run), &p->config, &p->net);
    LS_TRY(ls_run_distribute(run, comm, NULL));
    LS_TRY(ls_run_group(run, "*.bias", &no_decay));
    LS_TRY(ls_run_group(run, "*ln_?.weight", &no_decay));
    LS_TRY(ls_run_declare_with(run, "perplexity", exp));
    LS_TRY(ls_run_evaluate_with(run, add_loss, p, "perplexity", 1));
    LS_TRY(ls_run_start(run, NULL, NULL));
    while (ls_run_next(run, &batch)) {
        LS_TRY(add_loss(p, run, &batch));
        ls_run_step(run, p->loss);
    }
    LS_TRY(ls_run_status(run));
    ls_run_get_state(run, &state);
    if (state.stopping || ls_comm_rank(comm) != 0 || p->text.length == 0)
        return LS_OK;
    p->text.tokens = p->tokens;
    p->text.context = p->config.context;
    p->text.seed = p->flags.seed;
    return generate(&p->text, ls_run_device(run), ls_run_tape(run), gpt_next, &p->net, stdout);
}

int main(int argc, char **argv)
{
    program p = {
        .flags = {.epochs = 40,
                  .batch_size = 12,
                  .optimizer = "adamw",
                  .lr = 1e-3,
                  .weight_decay = 0.1,
                  .schedule = "cosine",
                  .lr_warmup_epochs = 2,
                  .clip_grad_norm = 1,
                  .data = "/usr/share/common-licenses/GPL-3"},
        .config =
            {.prefix = "", .layers = 4, .heads = 4, .width = 128, .context = 64, .dropout = 0.1},
        .text = {.prompt = "The ", .length = 300, .temperature = 0.8, .top_k = 40},
    };
    gpt_config *c = &p.config;
    const ls_flag own[] = {
        {"layers", 0, LS_FLAG_INT, &c->layers, 1, GPT_MOST_LAYERS, "blocks of the network"},
        {"heads", 0, LS_FLAG_INT, &c->heads, 1, 1024, "of each attention; they divide the width"},
        {"width", 0, LS_FLAG_INT, &c->width, 1, 1 << 16, "size of the hidden states"},
        {"context", 0, LS_FLAG_INT, &c->context, 2, 1 << 20, "tokens of a sample"},
        {"dropout", 0, LS_FLAG_REAL, &c->dropout, 0, 1, "its probability"},
        {"prefix", 0, LS_FLAG_TEXT, &c->prefix, 0, 0, "of the names in files, as transformer."},
        {"vocab", 0, LS_FLAG_TEXT, &p.vocab, 0, 0, "`FILE` vocab.json of GPT-2; default: bytes"},
        {"merges", 0, LS_FLAG_TEXT, &p.merges, 0, 0, "`FILE` merges.txt of GPT-2"},
        {"prompt", 0, LS_FLAG_TEXT, &p.text.prompt, 0, 0, "text to continue at the end"},
        {"length", 0, LS_FLAG_INT, &p.text.length, 0, 1 << 20, "tokens to add to the prompt"},
        {"temperature", 0, LS_FLAG_REAL, &p.text.temperature, 0, 100, "0: the likeliest token"},
        {"top-k", 0, LS_FLAG_INT, &p.text.top_k, 0, 1 << 20, "of the k likeliest tokens; 0: all"},
    };
    const char *const local[] = {"prompt", "length", "temperature", "top-k", NULL}; /* rank 0 */
    const ls_train_program main_program = {.size = sizeof(main_program),
                                           .name = "gpt",
                                           .flags = &p.flags,
                                           .summary =
                                               "Trains GPT-2 on a text and continues a prompt.",
                                           .own = own,
                                           .n_own = sizeof(own) / sizeof(own[0]),
                                           .train = train,
                                           .arg = &p,
                                           .local = local};
    const int code = ls_train_main(&main_program, argc, argv);

    free(p.ids);
    bpe_close(p.tokens);
    return code;
}
