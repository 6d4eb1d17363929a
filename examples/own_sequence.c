/* SPDX-License-Identifier: Apache-2.0 */
/* own_sequence.c - an LSTM that reads sentences byte by byte and classifies them. */
#include <lockstep/lockstep.h>
#include <stdio.h>

enum { TRAINED = 5400, HELD_OUT = 600 };

static struct sentence {
    int64_t positive, n;
    char text[160];
} sentences[TRAINED + HELD_OUT];

typedef struct network {
    int64_t width;
    ls_layer *embedding, *lstm, *head;
} network;

/* Three to five clauses, as "the soup was not hot"; the last one decides. */
static void make_sentence(struct sentence *s, uint32_t r)
{
    static const char *const what[] = {"bad", "dull", "sad", "old", "good", "fun", "new", "hot"};

    for (uint32_t clauses = 3 + r % 3; clauses > 0; clauses--) {
        r = r * 1664525 + 1013904223;
        s->n += snprintf(s->text + s->n, 40, "the %s was %s%s%s", r >> 28 & 1 ? "film" : "soup",
                         r >> 27 & 1 ? "not " : "", what[r >> 29], clauses > 1 ? " but " : "");
        s->positive = (r >> 31) ^ (r >> 27 & 1);
    }
}

static ls_status length(void *first, size_t index, int64_t *lengths)
{
    lengths[0] = ((const struct sentence *)first)[index].n;
    return LS_OK;
}

static ls_status read_text(void *first, const ls_sample_request *request, void *const *values)
{
    const struct sentence *s = (const struct sentence *)first + request->index;

    for (int64_t i = 0; i < s->n; i++)
        ((int64_t *)values[0])[i] = (unsigned char)s->text[i];
    *(int64_t *)values[1] = s->positive;
    return LS_OK;
}

static ls_status give_set(ls_run *run, struct sentence *first, size_t n, int is_test)
{
    const ls_field fields[] = {{"text", LS_I64, 1, {-1}, 0}, {"positive", LS_I64, 0, {0}, 0}};
    const ls_dataset_callbacks c = {sizeof(c), n, fields, 2, length, read_text, NULL, NULL, first};
    ls_dataset *set;

    LS_TRY(ls_dataset_create(&c, &set));
    return is_test ? ls_run_test_on_take(run, set) : ls_run_train_on_take(run, set);
}

/* Logits (rows, 2), from the state of the LSTM behind the last byte of each row. */
static ls_tensor *forward(const network *net, ls_tape *tape, const ls_batch *batch)
{
    ls_tensor *x = ls_forward(tape, net->embedding, ls_batch_field(batch, "text"));
    ls_rnn_state last;

    ls_forward_sequence(tape, net->lstm, x, ls_batch_lengths(batch, "text"), NULL, &last);
    return ls_forward(tape, net->head, ls_reshape(tape, last.h, 2, (int64_t[]){-1, net->width}));
}

static ls_status evaluate(void *net, ls_run *run, const ls_batch *batch)
{
    ls_tensor *logits = forward(net, ls_run_tape(run), batch);
    int64_t right = 0;

    LS_TRY(ls_top_k_correct(logits, batch->y, (int[]){1}, 1, &right));
    ls_run_add_number(run, "accuracy", (double)right / (double)batch->rows, (double)batch->rows);
    return LS_OK;
}

static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    ls_model *model = ls_run_model(run);
    network *net = arg;
    ls_batch batch;

    for (uint32_t i = 0; i < TRAINED + HELD_OUT; i++)
        make_sentence(&sentences[i], i * 2654435761);
    LS_TRY(give_set(run, sentences, TRAINED, 0));
    LS_TRY(give_set(run, sentences + TRAINED, HELD_OUT, 1));
    LS_TRY(ls_run_bucket_by_length(run, "text"));
    net->embedding = ls_nn_embedding(model, "embedding", 256, 32, 0);
    net->lstm = ls_nn_lstm(model, "lstm", 32, (int)net->width, NULL);
    net->head = ls_nn_linear(model, "head", (int)net->width, 2, 0);
    LS_TRY(ls_run_distribute(run, comm, NULL));
    LS_TRY(ls_run_declare(run, "accuracy"));
    LS_TRY(ls_run_evaluate_with(run, evaluate, net, "accuracy", 0));
    LS_TRY(ls_run_start(run, NULL, NULL));
    while (ls_run_next(run, &batch))
        ls_run_step(run, ls_run_classify(run, forward(net, ls_run_tape(run), &batch), batch.y));
    return LS_OK;
}

int main(int argc, char **argv)
{
    network net = {.width = 64};
    ls_train_flags flags = {.epochs = 2, .batch_size = 20, .optimizer = "adam", .lr = 0.003};
    const ls_flag own = {"width", 0, LS_FLAG_INT, &net.width, 1, 4096, "of the LSTM's state"};
    const ls_train_program p = {sizeof(p), "own_sequence", "Classifies text.", &flags, &own,
                                1,         .train = train, .arg = &net};

    return ls_train_main(&p, argc, argv);
}
