/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tacotron2.c - tests the network of Tacotron2 with tiny sizes: sizes, padding, speaking, the
 * measure of alignments. tests/parity/tacotron2_parity.py compares it with PyTorch.
 */
#include "base/unit.h"

#include "data/temp_files.h"
#include "models/tacotron2.h"

#include <lockstep/checkpoint.h>

#include <math.h>
#include <stdlib.h>

enum { BANDS = 3, STEPS = 7, IDS = 5, SYMBOLS = 11 };

typedef struct fixture {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    tacotron2 net;
} fixture;

static tacotron2_config tiny(void)
{
    return (tacotron2_config){.n_mel_channels = BANDS,
                              .n_symbols = SYMBOLS,
                              .symbols_embedding_dim = 8,
                              .encoder_kernel_size = 5,
                              .encoder_n_convolutions = 2,
                              .encoder_embedding_dim = 8,
                              .attention_rnn_dim = 9,
                              .attention_dim = 6,
                              .attention_location_n_filters = 4,
                              .attention_location_kernel_size = 3,
                              .n_frames_per_step = 2,
                              .decoder_rnn_dim = 10,
                              .prenet_dim = 7,
                              .postnet_embedding_dim = 5,
                              .postnet_kernel_size = 3,
                              .postnet_n_convolutions = 3};
}

static void open_net(fixture *f, const tacotron2_config *config)
{
    *f = (fixture){.device = NULL};
    assert_ok(ls_device_open(NULL, &f->device));
    assert_ok(ls_model_create(f->device, 7, &f->model));
    assert_ok(ls_tape_create(f->device, &f->tape));
    assert_ok(tacotron2_create(f->model, config, &f->net));
    ls_tape_set_training(f->tape, 0);
}

static void close_net(fixture *f)
{
    tacotron2_destroy(&f->net);
    ls_tape_destroy(f->tape);
    ls_model_destroy(f->model);
    assert_ok(ls_device_close(f->device));
}

static ls_tensor *tensor_of(fixture *f, ls_dtype type, int n, const int64_t *dims, const void *data)
{
    ls_tensor *t;

    assert_ok(ls_tensor_create(f->device, type, n, dims, &t));
    if (data != NULL)
        assert_ok(ls_tensor_write(t, data, ls_tensor_count(t)));
    return t;
}

static float *copy_of(const ls_tensor *t)
{
    float *values = malloc(ls_tensor_count(t) * sizeof(*values));

    assert_non_null(values);
    assert_ok(ls_tensor_read(t, values, ls_tensor_count(t)));
    return values;
}

static ls_tensor *parameter(fixture *f, const char *name)
{
    int n;
    const ls_named *p = ls_model_parameters(f->model, &n);

    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return p[i].tensor;
    fail_msg("no parameter %s", name);
    return NULL;
}

static void fill(fixture *f, const char *name, double value)
{
    assert_ok(ls_tensor_fill(parameter(f, name), value));
}

/* --- sizes --- */

static void sizes_are_read_from_weights(void **state)
{
    const tacotron2_config config = tiny();
    tacotron2_config read;
    temp_folder folder;
    char path[TEMP_PATH_BYTES];
    fixture f;
    const ls_named *items;
    int n;

    (void)state;
    temp_folder_create(&folder);
    (void)temp_path(&folder, "weights", path);
    open_net(&f, &config);
    items = ls_model_state(f.model, &n);
    assert_ok(ls_checkpoint_save(path, items, n, NULL, 0));
    tacotron2_defaults(&read);
    assert_ok(tacotron2_read_sizes(path, &read));
    assert_true(read.p_attention_dropout == 0.1);
    read.p_attention_dropout = read.p_decoder_dropout = 0;
    read.p_convolution_dropout = read.p_prenet_dropout = 0;
    read.checkpoint_steps = 0;
    assert_memory_equal(&read, &config, sizeof(config));
    assert_ok(ls_checkpoint_save(path, items, 3, NULL, 0));
    assert_status(tacotron2_read_sizes(path, &read), LS_EFORMAT);
    assert_last_error("does not have the weights of a Tacotron2");
    close_net(&f);
    temp_folder_remove(&folder);
}

static void default_sizes_are_valid(void **state)
{
    tacotron2_config c;

    (void)state;
    tacotron2_defaults(&c);
    assert_null(tacotron2_check(&c));
    c.encoder_kernel_size = 4;
    assert_string_equal(tacotron2_check(&c), "the kernel sizes must be odd");
    tacotron2_defaults(&c);
    c.encoder_embedding_dim = c.symbols_embedding_dim = 7;
    assert_non_null(tacotron2_check(&c));
    tacotron2_defaults(&c);
    c.encoder_embedding_dim = 256;
    assert_non_null(tacotron2_check(&c));
    tacotron2_defaults(&c);
    c.postnet_n_convolutions = 1;
    assert_non_null(tacotron2_check(&c));
    tacotron2_defaults(&c);
    c.prenet_dim = 0;
    assert_non_null(tacotron2_check(&c));
}

/* --- forward --- */

typedef struct inputs {
    ls_tensor *all[6];
    tacotron2_batch batch;
} inputs;

/* The first `rows` of two sentences: one of `ids` ids and `steps` steps; one of IDS and STEPS. */
static inputs sentences(fixture *f, int64_t rows, int64_t ids, int64_t steps)
{
    const int64_t s = rows == 1 ? ids : IDS, t = rows == 1 ? steps : STEPS;
    const int64_t width = BANDS * f->net.config.n_frames_per_step;
    int64_t text[2 * IDS] = {0}, lengths[2] = {ids, IDS};
    uint8_t text_padding[2 * IDS], mel_padding[2 * STEPS];
    float mel[2 * STEPS * BANDS * 2] = {0}, gate[2 * STEPS];
    inputs in;

    for (int64_t n = 0; n < rows; n++) {
        const int64_t my_ids = n == 0 ? ids : IDS, my_steps = n == 0 ? steps : STEPS;

        for (int64_t i = 0; i < s; i++) {
            text[n * s + i] = i < my_ids ? 1 + (3 * n + 2 * i) % (SYMBOLS - 1) : 0;
            text_padding[n * s + i] = i >= my_ids;
        }
        for (int64_t i = 0; i < t; i++) {
            mel_padding[n * t + i] = i >= my_steps;
            gate[n * t + i] = i + 1 >= my_steps;
            for (int64_t k = 0; k < width && i < my_steps; k++)
                mel[(n * t + i) * width + k] = (float)sin((double)(n * 100 + i * width + k));
        }
    }
    in.all[0] = tensor_of(f, LS_I64, 2, (int64_t[]){rows, s}, text);
    in.all[1] = tensor_of(f, LS_I64, 1, (int64_t[]){rows}, lengths);
    in.all[2] = tensor_of(f, LS_U8, 3, (int64_t[]){rows, 1, s}, text_padding);
    in.all[3] = tensor_of(f, LS_F32, 3, (int64_t[]){rows, t, width}, mel);
    in.all[4] = tensor_of(f, LS_U8, 3, (int64_t[]){rows, t, 1}, mel_padding);
    in.all[5] = tensor_of(f, LS_F32, 3, (int64_t[]){rows, t, 1}, gate);
    in.batch =
        (tacotron2_batch){in.all[0], in.all[1], in.all[2], in.all[3], in.all[4], in.all[5], NULL};
    return in;
}

static void destroy(inputs *in)
{
    for (int i = 0; i < 6; i++)
        ls_tensor_destroy(in->all[i]);
}

static void assert_close(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) < 1e-5))
            fail_msg("element %zu: %g and %g", i, (double)a[i], (double)b[i]);
}

/* With a kernel of 1: wider convolutions read behind the end, as NVIDIA's. */
static void lstm_and_attention_do_not_read_behind_the_end(void **state)
{
    enum { MY_IDS = 3, MY_STEPS = 4 };
    tacotron2_config config = tiny();
    const size_t width = BANDS * 2;
    tacotron2_output out;
    fixture f;

    (void)state;
    config.encoder_kernel_size = 1;
    open_net(&f, &config);
    for (int part = 0; part < 3; part++) {
        float *values[2];
        size_t row[2];

        for (int alone = 0; alone < 2; alone++) {
            inputs in = sentences(&f, alone ? 1 : 2, MY_IDS, MY_STEPS);
            const ls_tensor *t;

            assert_ok(tacotron2_forward(&f.net, f.tape, &in.batch, &out));
            t = part == 0 ? out.mel : part == 1 ? out.gate : out.alignment;
            row[alone] = (size_t)ls_tensor_dim(t, 2);
            values[alone] = copy_of(t);
            ls_tape_reset(f.tape);
            destroy(&in);
        }
        for (size_t t = 0; t < MY_STEPS; t++)
            assert_close(values[0] + t * row[0], values[1] + t * row[1],
                         part == 0 ? width : row[1]);
        for (size_t t = 0; part == 2 && t < MY_STEPS; t++)
            for (size_t s = MY_IDS; s < IDS; s++)
                assert_true(values[0][t * row[0] + s] == 0);
        free(values[0]);
        free(values[1]);
    }
    close_net(&f);
}

/* The loss of the real steps alone, 4 of row 0 and all of row 1, over the number of all steps. */
static double loss_of_steps(const float *mel, const float *post, const float *gate,
                            const float *target, const float *end)
{
    const size_t width = BANDS * 2;
    double squares = 0, entropy = 0;

    for (size_t t = 0; t < 2 * STEPS; t++) {
        if (t >= 4 && t < STEPS)
            continue;
        for (size_t k = t * width; k < (t + 1) * width; k++)
            squares += pow((double)(mel[k] - target[k]), 2) + pow((double)(post[k] - target[k]), 2);
        entropy += log1p(exp((double)gate[t])) - (double)(end[t] * gate[t]);
    }
    return squares / (2 * STEPS * (double)width) + entropy / (2 * STEPS);
}

static void masked_padding_adds_nothing_to_the_loss(void **state)
{
    enum { OUTPUTS = 5 };
    tacotron2_config config = tiny();
    tacotron2_output out;
    ls_tensor *loss;
    float *values[OUTPUTS];
    double got;
    fixture f;
    inputs in;

    (void)state;
    config.mask_padding = 1;
    open_net(&f, &config);
    in = sentences(&f, 2, 3, 4);
    assert_ok(tacotron2_forward(&f.net, f.tape, &in.batch, &out));
    loss = tacotron2_loss(f.tape, &out, &in.batch);
    assert_ok(ls_tape_status(f.tape));
    assert_ok(ls_item(loss, &got));
    values[0] = copy_of(out.mel);
    values[1] = copy_of(out.mel_postnet);
    values[2] = copy_of(out.gate);
    values[3] = copy_of(in.batch.mel);
    values[4] = copy_of(in.batch.gate);
    assert_true(fabs(got - loss_of_steps(values[0], values[1], values[2], values[3], values[4])) <
                1e-5);
    for (int i = 0; i < OUTPUTS; i++)
        free(values[i]);
    ls_tape_reset(f.tape);
    destroy(&in);
    close_net(&f);
}

/* --- guided attention --- */

static void guide_grows_with_the_distance_from_the_diagonal(void **state)
{
    static const int64_t steps[] = {4, STEPS}, n_ids[] = {2, IDS};
    float guide[2][STEPS][IDS];

    (void)state;
    tacotron2_guide(steps, n_ids, 2, STEPS, IDS, 3, &guide[0][0][0]);
    for (int n = 0; n < 2; n++)
        for (int t = 0; t < STEPS; t++)
            for (int s = 0; s < IDS; s++) {
                const double away = (s + 0.5) / (double)n_ids[n] - (t + 0.5) / (double)steps[n];
                const double want = 3 * (1 - exp(-away * away / 0.08)) / (4 + STEPS);
                const int is_real = t < steps[n] && s < n_ids[n];

                assert_true(fabs((double)guide[n][t][s] - (is_real ? want : 0)) < 1e-6);
            }
}

/* The loss of a step in training, with `guide` or without (NULL), and the sum of alignment times
 * `guide`; backward with `grad` (of `leaf`). */
static double loss_in_training(fixture *f, inputs *in, ls_tensor *guide, ls_tensor *leaf,
                               float **grad, double *product)
{
    tacotron2_output out;
    ls_tensor *loss;
    double value;

    in->batch.guide = guide;
    assert_ok(tacotron2_forward(&f->net, f->tape, &in->batch, &out));
    loss = tacotron2_loss(f->tape, &out, &in->batch);
    assert_ok(ls_tape_status(f->tape));
    assert_ok(ls_item(loss, &value));
    if (product != NULL) {
        float *a = copy_of(out.alignment), *g = copy_of(guide);

        *product = 0;
        for (size_t i = 0; i < ls_tensor_count(guide); i++)
            *product += (double)a[i] * (double)g[i];
        free(a);
        free(g);
    }
    if (grad != NULL) {
        ls_zero_grad(leaf);
        assert_ok(ls_backward(f->tape, loss, 1));
        *grad = copy_of(ls_grad(leaf));
    }
    ls_tape_reset(f->tape);
    return value;
}

static void check_guided_attention(int64_t checkpoint_steps)
{
    tacotron2_config config = tiny();
    const float step = 0.01F;
    float values[2 * STEPS * IDS], *with, *without, *weight;
    double product, loss;
    fixture f;
    inputs in;
    ls_tensor *guide, *leaf;

    config.checkpoint_steps = checkpoint_steps;
    open_net(&f, &config);
    ls_tape_set_training(f.tape, 1);
    in = sentences(&f, 2, 3, 4);
    tacotron2_guide((int64_t[]){4, STEPS}, (int64_t[]){3, IDS}, 2, STEPS, IDS, 100, values);
    guide = tensor_of(&f, LS_F32, 3, (int64_t[]){2, STEPS, IDS}, values);
    leaf = parameter(&f, "decoder.attention_layer.v.linear_layer.weight");
    weight = copy_of(leaf);
    loss = loss_in_training(&f, &in, guide, leaf, &with, &product);
    assert_true(product > 10);
    loss -= loss_in_training(&f, &in, NULL, leaf, &without, NULL);
    assert_true(fabs(loss - product) < 1e-4 * product);
    for (size_t i = 0; i < ls_tensor_count(leaf); i++) {
        const float old = weight[i];
        double products[2];

        for (int side = 0; side < 2; side++) {
            weight[i] = side == 0 ? old - step : old + step;
            assert_ok(ls_tensor_write(leaf, weight, ls_tensor_count(leaf)));
            (void)loss_in_training(&f, &in, guide, NULL, NULL, &products[side]);
        }
        weight[i] = old;
        if (fabs((products[1] - products[0]) / (2 * (double)step) -
                 (double)(with[i] - without[i])) > 0.02)
            fail_msg("gradient %zu: %g, differences give %g", i, (double)(with[i] - without[i]),
                     (products[1] - products[0]) / (2 * (double)step));
    }
    free(with);
    free(without);
    free(weight);
    ls_tensor_destroy(guide);
    destroy(&in);
    close_net(&f);
}

static void guided_attention_adds_its_value_and_gradient_to_the_loss(void **state)
{
    (void)state;
    check_guided_attention(0);
    check_guided_attention(3);
}

/* --- memory --- */

/* The gradients of a step with `checkpoint_steps`: those of all parameters, *count numbers. */
static float *gradients(int64_t checkpoint_steps, size_t *count)
{
    tacotron2_config config = tiny();
    const ls_named *p;
    tacotron2_output out;
    float *values = NULL;
    fixture f;
    inputs in;
    int n;

    config.p_attention_dropout = config.p_decoder_dropout = config.p_prenet_dropout = 0.3;
    config.checkpoint_steps = checkpoint_steps;
    open_net(&f, &config);
    ls_tape_set_training(f.tape, 1);
    ls_tape_set_random(f.tape, 5, 1);
    in = sentences(&f, 2, 3, 4);
    assert_ok(tacotron2_forward(&f.net, f.tape, &in.batch, &out));
    assert_ok(ls_backward(f.tape, tacotron2_loss(f.tape, &out, &in.batch), 1));
    p = ls_model_parameters(f.model, &n);
    *count = 0;
    for (int i = 0; i < n; i++) {
        const size_t size = ls_tensor_count(p[i].tensor);

        values = realloc(values, (*count + size) * sizeof(*values));
        assert_non_null(values);
        assert_non_null(ls_grad(p[i].tensor));
        assert_ok(ls_tensor_read(ls_grad(p[i].tensor), values + *count, size));
        *count += size;
    }
    ls_tape_reset(f.tape);
    destroy(&in);
    close_net(&f);
    return values;
}

static void gradients_do_not_depend_on_checkpoints(void **state)
{
    size_t count;
    float *kept = gradients(0, &count);

    (void)state;
    for (int64_t steps = 1; steps <= STEPS + 1; steps++) { // also more than there are
        size_t again;
        float *computed = gradients(steps, &again);

        assert_int_equal(again, count);
        assert_memory_equal(computed, kept, count * sizeof(*kept));
        free(computed);
    }
    free(kept);
}

/* --- speaking --- */

static const int64_t hello[IDS] = {1, 3, 5, 7, 9};

/* The postnet adds 0, so that the mel is what the decoder reads. */
static void silence_postnet(fixture *f)
{
    fill(f, "postnet.convolutions.2.1.weight", 0);
    fill(f, "postnet.convolutions.2.1.bias", 0);
}

static void speech_is_what_teacher_forcing_predicts_from_it(void **state)
{
    const tacotron2_config config = tiny();
    tacotron2_speech speech;
    tacotron2_output out;
    fixture f;
    inputs in;
    float *mel, *alignment;

    (void)state;
    open_net(&f, &config);
    silence_postnet(&f);
    fill(&f, "decoder.gate_layer.linear_layer.bias", -100);
    assert_ok(tacotron2_speak(&f.net, f.tape, hello, IDS, 0.5, STEPS, 1, &speech));
    assert_int_equal(speech.steps, STEPS);
    assert_false(speech.has_ended);
    in = sentences(&f, 1, IDS, STEPS);
    assert_ok(ls_tensor_write(in.batch.text, hello, IDS));
    assert_ok(ls_tensor_write(in.batch.mel, speech.mel, STEPS * BANDS * 2));
    assert_ok(tacotron2_forward(&f.net, f.tape, &in.batch, &out));
    mel = copy_of(out.mel);
    alignment = copy_of(out.alignment);
    assert_close(mel, speech.mel, STEPS * BANDS * 2);
    assert_close(alignment, speech.alignment, STEPS * IDS);
    free(mel);
    free(alignment);
    ls_tape_reset(f.tape);
    destroy(&in);
    tacotron2_speech_free(&speech);
    close_net(&f);
}

static void speech_ends_when_the_gate_opens(void **state)
{
    const tacotron2_config config = tiny();
    tacotron2_speech speech;
    fixture f;

    (void)state;
    open_net(&f, &config);
    fill(&f, "decoder.gate_layer.linear_layer.bias", 100);
    assert_ok(tacotron2_speak(&f.net, f.tape, hello, IDS, 0.5, STEPS, 1, &speech));
    assert_int_equal(speech.steps, 1);
    assert_true(speech.has_ended);
    tacotron2_speech_free(&speech);
    close_net(&f);
}

static void seed_decides_the_dropout_of_speech(void **state)
{
    tacotron2_config config = tiny();
    tacotron2_speech speech[3];
    fixture f;

    (void)state;
    config.p_prenet_dropout = 0.5;
    open_net(&f, &config);
    fill(&f, "decoder.gate_layer.linear_layer.bias", -100);
    for (int i = 0; i < 3; i++)
        assert_ok(
            tacotron2_speak(&f.net, f.tape, hello, IDS, 0.5, STEPS, (uint64_t)i / 2, &speech[i]));
    assert_memory_equal(speech[0].mel, speech[1].mel, STEPS * BANDS * 2 * sizeof(float));
    assert_memory_not_equal(speech[0].mel, speech[2].mel, STEPS * BANDS * 2 * sizeof(float));
    for (int i = 0; i < 3; i++)
        tacotron2_speech_free(&speech[i]);
    close_net(&f);
}

static void unknown_ids_are_an_error(void **state)
{
    const tacotron2_config config = tiny();
    tacotron2_speech speech;
    fixture f;

    (void)state;
    open_net(&f, &config);
    assert_status(tacotron2_speak(&f.net, f.tape, (int64_t[]){1, SYMBOLS}, 2, 0.5, 3, 1, &speech),
                  LS_EINVAL);
    assert_last_error("embedding");
    assert_null(speech.mel);
    close_net(&f);
}

/* --- the measure --- */

static void measure_is_the_share_near_the_diagonal(void **state)
{
    enum { N = 50 };
    static float exact[N * N], reversed[N * N], even[N * N];

    (void)state;
    for (size_t t = 0; t < N; t++) {
        exact[t * N + t] = 1;
        reversed[t * N + N - 1 - t] = 1;
        for (size_t s = 0; s < N; s++)
            even[t * N + s] = 1.0F / N;
    }
    assert_true(tacotron2_diagonal(exact, N, N, N) == 1);
    // |1 - 2 t| <= 0.2 for a fifth of the time; 2 * 0.2 - 0.2^2 of the square.
    assert_true(fabs(tacotron2_diagonal(reversed, N, N, N) - 0.2) < 0.03);
    assert_true(fabs(tacotron2_diagonal(even, N, N, N) - 0.36) < 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read_from_weights),
        cmocka_unit_test(default_sizes_are_valid),
        cmocka_unit_test(lstm_and_attention_do_not_read_behind_the_end),
        cmocka_unit_test(masked_padding_adds_nothing_to_the_loss),
        cmocka_unit_test(guide_grows_with_the_distance_from_the_diagonal),
        cmocka_unit_test(guided_attention_adds_its_value_and_gradient_to_the_loss),
        cmocka_unit_test(gradients_do_not_depend_on_checkpoints),
        cmocka_unit_test(speech_is_what_teacher_forcing_predicts_from_it),
        cmocka_unit_test(speech_ends_when_the_gate_opens),
        cmocka_unit_test(seed_decides_the_dropout_of_speech),
        cmocka_unit_test(unknown_ids_are_an_error),
        cmocka_unit_test(measure_is_the_share_near_the_diagonal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
