/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tacotron2.c - trains Tacotron2 on speech in LJSpeech's layout, in one process or many, and speaks
 * with the weights. Flags are named as those of NVIDIA's train.py where they mean the same.
 *
 *   lockstep data speak speech                               a set, made with espeak-ng
 *   lockstep run --nproc-per-node 2 tacotron2 -d speech --save weights.safetensors
 *   tacotron2 say "a text" --init weights.safetensors -o out.wav
 */
#include <lockstep/lockstep.h>

#include "models/speech/mel.h"
#include "models/speech/picture.h"
#include "models/speech/speech_set.h"
#include "models/speech/text.h"
#include "models/speech/wav.h"
#include "models/tacotron2.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ANNEALS = 32, PICTURE_ZOOM = 3, ITERATIONS = 60 };

/* The flags of this program, after those of all training programs. */
typedef struct settings {
    ls_train_flags common;
    tacotron2_config config;
    int64_t validation; /* lines at the end of metadata.csv that are not trained on */
    int bucket;
    const char *output;
    char path[4096]; /* of the file in `output` */
    const char *anneal_steps;
    double anneal_factor;
    int64_t anneals[MAX_ANNEALS]; /* epochs */
    int n_anneals;
    const char *pictures;
    double guided_attention; /* its weight in the loss of training */
    tacotron2 net;
} settings;

/* Makes a text of models/speech this thread's last error. */
static ls_status fail_speech(ls_status status, const speech_error *error)
{
    const ls_status refused = ls_train_refuse("%s", error->text);

    return refused == LS_OK ? refused : status;
}

/* --- training --- */

static ls_status open_data(const settings *s, ls_run *run)
{
    speech_set_options part = {.dir = s->common.data, .frames = (int)s->config.n_frames_per_step};
    const size_t held = (size_t)s->validation;
    ls_dataset *set;
    size_t n;

    LS_TRY(speech_set_count(part.dir, &n));
    if (held >= n)
        return ls_train_refuse("--validation %zu: %s has %zu sentences only", held, part.dir, n);
    part.count = n - held;
    LS_TRY(speech_set_open(&part, &set));
    LS_TRY(ls_run_train_on_take(run, set));
    if (held > 0) {
        part.first = n - held;
        part.count = held;
        LS_TRY(speech_set_open(&part, &set));
        LS_TRY(ls_run_test_on_take(run, set));
    }
    return s->bucket ? ls_run_bucket_by_length(run, "mel") : LS_OK;
}

static tacotron2_batch fields_of(const ls_batch *batch)
{
    return (tacotron2_batch){.text = ls_batch_field(batch, "text"),
                             .text_lengths = ls_batch_lengths(batch, "text"),
                             .text_padding = ls_batch_field(batch, "text_padding"),
                             .mel = ls_batch_field(batch, "mel"),
                             .mel_padding = ls_batch_field(batch, "mel_padding"),
                             .gate = ls_batch_field(batch, "gate")};
}

/* NVIDIA's rates: --lr times --anneal-factor for each epoch of --anneal-steps that has begun; a
 * factor of 0.3 gives 1, 0.3, 0.1, 0.03, ... */
static double anneal(void *arg, int64_t step, int64_t steps)
{
    const settings *s = arg;
    double lr = s->common.lr;
    int n = 0;

    for (int i = 0; i < s->n_anneals; i++)
        n += (double)step >= (double)s->anneals[i] * (double)steps / (double)s->common.epochs;
    if (s->anneal_factor != 0.3)
        return lr * pow(s->anneal_factor, n);
    return lr * pow(0.1, n / 2) * (n % 2 == 0 ? 1 : 0.3);
}

/* --- evaluation --- */

/* Results of an evaluated batch in host memory. */
typedef struct results {
    float *alignment; /* [rows][steps][longest] */
    float *predicted; /* [rows][steps][frame], as `target` */
    float *target;
    size_t steps, longest, frame;
} results;

static ls_status copy_tensor(const ls_tensor *t, float **out)
{
    *out = malloc(ls_tensor_count(t) * sizeof(**out));
    if (*out == NULL)
        return ls_train_refuse("no memory for the results of an evaluation");
    return ls_tensor_read(t, *out, ls_tensor_count(t));
}

static ls_status copy_results(const tacotron2_batch *b, const tacotron2_output *out, results *r)
{
    *r = (results){.steps = (size_t)ls_tensor_dim(b->mel, 1),
                   .longest = (size_t)ls_tensor_dim(b->text, 1),
                   .frame = (size_t)ls_tensor_dim(b->mel, 2)};
    LS_TRY(copy_tensor(out->alignment, &r->alignment));
    LS_TRY(copy_tensor(out->mel_postnet, &r->predicted));
    return copy_tensor(b->mel, &r->target);
}

static picture_panel mel_panel(const float *mel, size_t frames)
{
    return (picture_panel){mel, frames, MEL_BANDS, MEL_BANDS, -11.5F, 2, 1};
}

/* Gives a picture to --tensorboard, too. */
static ls_status draw_panels(const settings *s, ls_run *run, const char *name, int64_t epoch,
                             const picture_panel *panels, int n)
{
    char path[4096];
    speech_error error;
    void *png;
    size_t bytes;
    ls_status st;

    (void)snprintf(path, sizeof(path), "%s/%s-%04lld.png", s->pictures, name, (long long)epoch);
    st = picture_write(path, panels, n, PICTURE_ZOOM, &error);
    if (st == LS_OK)
        st = picture_read(path, &png, &bytes, &error);
    if (st != LS_OK)
        return fail_speech(st, &error);
    st = ls_run_image(run, name, png, bytes);
    free(png);
    return st;
}

/* Draws a sentence: the alignment; and the predicted mel above the true one. */
static ls_status draw(const settings *s, ls_run *run, int64_t epoch, const results *r, size_t row,
                      size_t steps, size_t n_ids)
{
    const float *alignment = r->alignment + row * r->steps * r->longest;
    const size_t first = row * r->steps * r->frame;
    const size_t frames = steps * r->frame / MEL_BANDS;
    const picture_panel weights = {
        alignment, steps, n_ids, r->longest, 0, 1, (size_t)s->config.n_frames_per_step};
    const picture_panel mels[] = {
        mel_panel(r->predicted + first, frames),
        mel_panel(r->target + first, frames),
    };

    LS_TRY(draw_panels(s, run, "alignment", epoch, &weights, 1));
    return draw_panels(s, run, "mel", epoch, mels, 2);
}

/* Measures the alignments, and draws sentence 0 on the rank that has it. */
static ls_status judge(const settings *s, ls_run *run, const ls_batch *batch, const results *r)
{
    const int64_t *n_ids = ls_batch_host_lengths(batch, "text");
    const int64_t *steps = ls_batch_host_lengths(batch, "mel");
    ls_run_state state;

    ls_run_get_state(run, &state);
    for (size_t row = 0; row < (size_t)batch->rows; row++) {
        const float *alignment = r->alignment + row * r->steps * r->longest;

        ls_run_add_number(
            run, "diagonal",
            tacotron2_diagonal(alignment, (size_t)steps[row], (size_t)n_ids[row], r->longest), 1);
        if (s->pictures != NULL && batch->indices[row] == 0)
            LS_TRY(draw(s, run, state.epoch + 1, r, row, (size_t)steps[row], (size_t)n_ids[row]));
    }
    return LS_OK;
}

/* Teacher forcing, as NVIDIA's validation. The random numbers depend on the sentences only. */
static ls_status evaluate(void *arg, ls_run *run, const ls_batch *batch)
{
    const settings *s = arg;
    ls_tape *tape = ls_run_tape(run);
    const tacotron2_batch b = fields_of(batch);
    tacotron2_output out;
    results r;
    ls_status st;

    ls_tape_set_random(tape, (uint64_t)s->common.seed, (int64_t)batch->indices[0]);
    LS_TRY(tacotron2_forward(&s->net, tape, &b, &out));
    ls_run_add(run, "loss", tacotron2_loss(tape, &out, &b), (double)batch->rows);
    LS_TRY(ls_tape_status(tape));
    st = copy_results(&b, &out, &r);
    if (st == LS_OK)
        st = judge(s, run, batch, &r);
    free(r.alignment);
    free(r.predicted);
    free(r.target);
    return st;
}

/* A step with guided attention. */
static ls_status step_guided(const settings *s, ls_run *run, const ls_batch *batch)
{
    tacotron2_batch b = fields_of(batch);
    const int64_t dims[] = {batch->rows, ls_tensor_dim(b.mel, 1), ls_tensor_dim(b.text, 1)};
    float *values = malloc((size_t)(dims[0] * dims[1] * dims[2]) * sizeof(*values));
    ls_tape *tape = ls_run_tape(run);
    tacotron2_output out;
    ls_status st;

    if (values == NULL)
        return ls_train_refuse("no memory for the guide of an attention");
    tacotron2_guide(ls_batch_host_lengths(batch, "mel"), ls_batch_host_lengths(batch, "text"),
                    (size_t)dims[0], (size_t)dims[1], (size_t)dims[2], s->guided_attention, values);
    st = ls_tensor_create(ls_tensor_device(b.mel), LS_F32, 3, dims, &b.guide);
    if (st == LS_OK)
        st = ls_tensor_write(b.guide, values, ls_tensor_count(b.guide));
    if (st == LS_OK)
        st = tacotron2_forward(&s->net, tape, &b, &out);
    if (st == LS_OK)
        ls_run_step(run, tacotron2_loss(tape, &out, &b));
    ls_tensor_destroy(b.guide);
    free(values);
    return st;
}

static ls_tensor *loss_of(void *arg, ls_run *run, const ls_batch *batch)
{
    const settings *s = arg;
    const tacotron2_batch b = fields_of(batch);
    tacotron2_output out;

    if (tacotron2_forward(&s->net, ls_run_tape(run), &b, &out) != LS_OK)
        return NULL;
    return tacotron2_loss(ls_run_tape(run), &out, &b);
}

static ls_status loop(settings *s, ls_run *run, ls_comm *comm)
{
    ls_batch batch;

    LS_TRY(ls_run_declare(run, "loss"));
    LS_TRY(ls_run_declare(run, "diagonal"));
    LS_TRY(ls_run_evaluate_with(run, evaluate, s, "loss", 1));
    if (s->n_anneals > 0)
        LS_TRY(ls_run_schedule_with(run, anneal, s));
    LS_TRY(ls_run_distribute(run, comm, NULL)); /* data-parallel training needs only this line */
    LS_TRY(ls_run_start(run, NULL, NULL));
    if (s->guided_attention == 0)
        ls_run_train(run, loss_of, s);
    while (ls_run_next(run, &batch))
        LS_TRY(step_guided(s, run, &batch));
    return LS_OK;
}

/* One rank. */
static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    settings *s = arg;
    ls_status st;

    LS_TRY(open_data(s, run));
    st = tacotron2_create(ls_run_model(run), &s->config, &s->net);
    if (st == LS_OK)
        st = loop(s, run, comm);
    tacotron2_destroy(&s->net);
    return st;
}

/* --- flags of training --- */

/* Sets --save to NVIDIA's name in the folder of --output. */
static void choose_file(settings *s)
{
    if (s->output == NULL || s->common.save != NULL)
        return;
    (void)snprintf(s->path, sizeof(s->path), "%s/checkpoint_Tacotron2_last.safetensors", s->output);
    s->common.save = s->path;
}

static ls_status check(void *arg)
{
    settings *s = arg;
    const char *problem = tacotron2_check(&s->config);
    const char *at = s->anneal_steps != NULL ? s->anneal_steps : "";

    if (problem != NULL)
        return ls_train_refuse("%s", problem);
    if (s->config.n_mel_channels != MEL_BANDS || s->config.n_symbols != TEXT_SYMBOLS)
        return ls_train_refuse("mels have %d bands and texts %d symbols", MEL_BANDS, TEXT_SYMBOLS);
    while (*at != 0) {
        char *end;
        const long long epoch = strtoll(at, &end, 10);

        if (end == at || (*end != 0 && *end != ',') || epoch < 0 || s->n_anneals == MAX_ANNEALS)
            return ls_train_refuse("--anneal-steps %s: expected epochs, as 500,1000,1500, at most "
                                   "%d",
                                   s->anneal_steps, MAX_ANNEALS);
        s->anneals[s->n_anneals++] = epoch;
        at = *end == ',' ? end + 1 : end;
    }
    choose_file(s);
    return LS_OK;
}

static int run_training(settings *s, int argc, char **argv)
{
    ls_train_flags *f = &s->common;
    tacotron2_config *c = &s->config;
    const double most = 65536;
    const ls_flag own[] = {
        {"Data", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"dataset-path", 'd', LS_FLAG_TEXT, &f->data, 0, 0,
         "`DIR` folder with metadata.csv and wavs/"},
        {"validation", 0, LS_FLAG_INT, &s->validation, 0, 1e9,
         "sentences at the end of metadata.csv to evaluate, not to train on"},
        {"bucket", 0, LS_FLAG_BOOL, &s->bucket, 0, 0, "batches of sentences of similar length"},
        {"Training", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"learning-rate", 0, LS_FLAG_REAL, &f->lr, 0, 1e6, "initial learning rate"},
        {"bs", 0, LS_FLAG_INT, &f->batch_size, 1, 1 << 24, "sentences per batch of one rank"},
        {"grad-clip-thresh", 0, LS_FLAG_REAL, &f->clip_grad_norm, 0, 1e30,
         "maximum norm of all gradients together"},
        {"anneal-steps", 0, LS_FLAG_TEXT, &s->anneal_steps, 0, 0,
         "`LIST` epochs after which the learning rate becomes smaller, as 500,1000,1500"},
        {"anneal-factor", 0, LS_FLAG_REAL, &s->anneal_factor, 0, 1,
         "its factor; 0.3 gives 1, 0.3, 0.1, 0.03, ..."},
        {"guided-attention", 0, LS_FLAG_REAL, &s->guided_attention, 0, 1e6,
         "weight in the loss of attention far from the diagonal (Tachibana et al. 2017); 0: none"},
        {"output", 'o', LS_FLAG_TEXT, &s->output, 0, 0,
         "`DIR` folder of checkpoint_Tacotron2_last.safetensors"},
        {"checkpoint-path", 0, LS_FLAG_TEXT, &f->resume, 0, 0, "`FILE` continue its run"},
        {"pictures", 0, LS_FLAG_TEXT, &s->pictures, 0, 0,
         "`DIR` draw alignment and mel of the first evaluated sentence (PNG), each evaluation; "
         "also into --tensorboard"},
        {"Network", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"mask-padding", 0, LS_FLAG_BOOL, &c->mask_padding, 0, 0,
         "steps behind the end of a sentence add nothing to the loss"},
        {"disable-uniform-initialize-bn-weight", 0, LS_FLAG_BOOL,
         &c->disable_uniform_initialize_bn_weight, 0, 0, "weights of batch norms begin with 1"},
        {"symbols-embedding-dim", 0, LS_FLAG_INT, &c->symbols_embedding_dim, 1, most,
         "width of a symbol; that of the encoder"},
        {"encoder-kernel-size", 0, LS_FLAG_INT, &c->encoder_kernel_size, 1, most, "odd"},
        {"encoder-n-convolutions", 0, LS_FLAG_INT, &c->encoder_n_convolutions, 1, most, "layers"},
        {"encoder-embedding-dim", 0, LS_FLAG_INT, &c->encoder_embedding_dim, 1, most,
         "width of the encoder"},
        {"n-frames-per-step", 0, LS_FLAG_INT, &c->n_frames_per_step, 1, 64,
         "mel frames of a decoder step"},
        {"decoder-rnn-dim", 0, LS_FLAG_INT, &c->decoder_rnn_dim, 1, most, "units"},
        {"prenet-dim", 0, LS_FLAG_INT, &c->prenet_dim, 1, most, "units"},
        {"p-attention-dropout", 0, LS_FLAG_REAL, &c->p_attention_dropout, 0, 1,
         "dropout of the attention LSTM"},
        {"p-decoder-dropout", 0, LS_FLAG_REAL, &c->p_decoder_dropout, 0, 1,
         "dropout of the decoder LSTM"},
        {"p-convolution-dropout", 0, LS_FLAG_REAL, &c->p_convolution_dropout, 0, 1,
         "dropout of the convolutions of encoder and postnet"},
        {"attention-rnn-dim", 0, LS_FLAG_INT, &c->attention_rnn_dim, 1, most, "units"},
        {"attention-dim", 0, LS_FLAG_INT, &c->attention_dim, 1, most, "width of the attention"},
        {"attention-location-n-filters", 0, LS_FLAG_INT, &c->attention_location_n_filters, 1, most,
         "filters over the weights of earlier steps"},
        {"attention-location-kernel-size", 0, LS_FLAG_INT, &c->attention_location_kernel_size, 1,
         most, "odd"},
        {"postnet-embedding-dim", 0, LS_FLAG_INT, &c->postnet_embedding_dim, 1, most,
         "width of the postnet"},
        {"postnet-kernel-size", 0, LS_FLAG_INT, &c->postnet_kernel_size, 1, most, "odd"},
        {"postnet-n-convolutions", 0, LS_FLAG_INT, &c->postnet_n_convolutions, 2, most, "layers"},
    };
    const ls_train_program program = {
        .size = sizeof(program),
        .name = "tacotron2",
        .summary = "Trains Tacotron2: speech from text. \"tacotron2 say --help\": speaks.",
        .flags = f,
        .own = own,
        .n_own = sizeof(own) / sizeof(own[0]),
        .check = check,
        .train = train,
        .arg = s,
    };

    return ls_train_main(&program, argc, argv);
}

/* --- say --- */

typedef struct say_settings {
    const char *text;
    const char *init;
    const char *output;
    const char *picture;
    const char *compare;
    const char *device;
    int64_t max_decoder_steps;
    double gate_threshold;
    int64_t seed;
    int no_verify;
    int help;
    int64_t ids[TEXT_MAX_IDS];
    size_t n_ids;
} say_settings;

static ls_status write_sound(const say_settings *s, const float *mel, size_t frames)
{
    float *samples = malloc(mel_samples(frames) * sizeof(*samples));
    mel_transform *m = NULL;
    speech_error error;
    ls_status st;

    if (samples == NULL)
        return ls_train_refuse("no memory for %zu frames of sound", frames);
    st = mel_create(&m, &error);
    if (st == LS_OK)
        st = mel_invert(m, mel, frames, ITERATIONS, (uint64_t)s->seed, samples, &error);
    if (st == LS_OK)
        st = wav_write(s->output, samples, mel_samples(frames), &error);
    mel_destroy(m);
    free(samples);
    return st == LS_OK ? LS_OK : fail_speech(st, &error);
}

/* The mel of a wav file, which the caller frees. */
static ls_status read_mel(const char *path, float **mel, size_t *frames)
{
    mel_transform *m = NULL;
    float *samples;
    speech_error error;
    size_t n;
    ls_status st = wav_read(path, &samples, &n, &error);

    *mel = NULL;
    if (st != LS_OK)
        return fail_speech(st, &error);
    *frames = mel_frames(n);
    *mel = malloc(*frames * MEL_BANDS * sizeof(**mel));
    if (*mel == NULL)
        st = speech_fail(&error, LS_ENOMEM, "no memory for the mel of %s", path);
    if (st == LS_OK)
        st = mel_create(&m, &error);
    if (st == LS_OK)
        st = mel_compute(m, samples, n, *mel, &error);
    mel_destroy(m);
    free(samples);
    return st == LS_OK ? LS_OK : fail_speech(st, &error);
}

/* Writes the files and prints the measures; `mel`: of --compare, or NULL. */
static ls_status write_speech(const say_settings *s, const tacotron2_speech *speech,
                              size_t frames_per_step, const float *mel, size_t mel_length)
{
    const size_t frames = speech->steps * frames_per_step;
    picture_panel panels[3] = {mel_panel(speech->mel, frames)};
    speech_error error;
    double distance;
    int n = 1;
    ls_status st = LS_OK;

    LS_TRY(write_sound(s, speech->mel, frames));
    printf("%s: %.2f s, %zu frames, diagonal %.3f", s->output,
           (double)mel_samples(frames) / MEL_RATE, frames,
           tacotron2_diagonal(speech->alignment, speech->steps, s->n_ids, s->n_ids));
    if (mel != NULL) {
        panels[n++] = mel_panel(mel, mel_length);
        st = mel_distance(speech->mel, frames, mel, mel_length, &distance, &error);
        if (st == LS_OK)
            printf(", distance %.3f", distance);
    }
    printf("\n");
    panels[n++] = (picture_panel){speech->alignment, speech->steps, s->n_ids, s->n_ids, 0, 1,
                                  frames_per_step};
    if (st == LS_OK && s->picture != NULL)
        st = picture_write(s->picture, panels, n, PICTURE_ZOOM, &error);
    if (!speech->has_ended)
        fprintf(stderr, "tacotron2: the gate did not open within --max-decoder-steps\n");
    return st == LS_OK ? LS_OK : fail_speech(st, &error);
}

static ls_status load(const say_settings *s, ls_model *model)
{
    ls_checkpoint *file;
    const ls_named *state;
    ls_status st;
    int n;

    state = ls_model_state(model, &n);
    LS_TRY(s->no_verify ? ls_checkpoint_open_unverified(s->init, &file)
                        : ls_checkpoint_open(s->init, &file));
    st = ls_checkpoint_load(file, state, n, LS_LOAD_SUBSET);
    ls_checkpoint_close(file);
    return st;
}

static ls_status speak(const say_settings *s, ls_model *model, ls_tape *tape, tacotron2 *net)
{
    tacotron2_config config;
    tacotron2_speech speech;
    float *mel = NULL;
    size_t n = 0;
    ls_status st = LS_OK;

    tacotron2_defaults(&config);
    LS_TRY(tacotron2_read_sizes(s->init, &config));
    LS_TRY(tacotron2_create(model, &config, net));
    LS_TRY(load(s, model));
    ls_tape_set_training(tape, 0);
    LS_TRY(tacotron2_speak(net, tape, s->ids, s->n_ids, s->gate_threshold, s->max_decoder_steps,
                           (uint64_t)s->seed, &speech));
    if (s->compare != NULL)
        st = read_mel(s->compare, &mel, &n);
    if (st == LS_OK)
        st = write_speech(s, &speech, (size_t)config.n_frames_per_step, mel, n);
    free(mel);
    tacotron2_speech_free(&speech);
    return st;
}

static ls_status say(say_settings *s)
{
    const ls_device_options options = {.size = sizeof(options), .name = s->device};
    ls_device *device = NULL;
    ls_model *model = NULL;
    ls_tape *tape = NULL;
    tacotron2 net = {.zero = NULL};
    text_unknown unknown;
    speech_error error;
    ls_status st;

    if (s->text == NULL || s->init == NULL)
        return ls_train_refuse("say needs a text and --init FILE: tacotron2 say \"a text\" --init "
                               "weights.safetensors -o out.wav");
    st = text_to_ids(s->text, s->ids, TEXT_MAX_IDS, &s->n_ids, &unknown, &error);
    if (st != LS_OK)
        return fail_speech(st, &error);
    if (unknown.n > 0)
        fprintf(stderr, "tacotron2: %zu characters are no symbols and are left out: %s\n",
                unknown.n, unknown.names);
    st = ls_device_open(&options, &device);
    if (st == LS_OK)
        st = ls_model_create(device, (uint64_t)s->seed, &model);
    if (st == LS_OK)
        st = ls_tape_create(device, &tape);
    if (st == LS_OK)
        st = speak(s, model, tape, &net);
    tacotron2_destroy(&net);
    ls_tape_destroy(tape);
    ls_model_destroy(model);
    ls_device_close(device);
    return st;
}

static ls_status run_say(say_settings *s, int argc, char **argv)
{
    const ls_flag table[] = {
        {"TEXT", 0, LS_FLAG_ARGUMENT, &s->text, 0, 0, "what to say, in English"},
        {"init", 0, LS_FLAG_TEXT, &s->init, 0, 0, "`FILE` weights; their sizes are the network's"},
        {"no-verify", 0, LS_FLAG_BOOL, &s->no_verify, 0, 0,
         "load weights that do not match their digests"},
        {"output", 'o', LS_FLAG_TEXT, &s->output, 0, 0, "`FILE` wav file, 22050 Hz"},
        {"picture", 0, LS_FLAG_TEXT, &s->picture, 0, 0, "`FILE` PNG of mel and alignment"},
        {"compare", 0, LS_FLAG_TEXT, &s->compare, 0, 0,
         "`FILE` wav file: print the distance from its mel, and draw it below the other"},
        {"gate-threshold", 0, LS_FLAG_REAL, &s->gate_threshold, 0, 1,
         "probability of the end over which it ends"},
        {"max-decoder-steps", 0, LS_FLAG_INT, &s->max_decoder_steps, MEL_MIN_FRAMES, 4096,
         "longest speech, in steps"},
        {"seed", 0, LS_FLAG_INT, &s->seed, 0, 1e15, "seed of dropout and phases"},
        {"device", 0, LS_FLAG_TEXT, &s->device, 0, 0, "`NAME` compute device"},
        {"help", 'h', LS_FLAG_BOOL, &s->help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "tacotron2 say",
                            .usage = "TEXT --init FILE [flags]",
                            .summary = "Speaks a text with the weights of a file.",
                            .tables = {table},
                            .n = {sizeof(table) / sizeof(table[0])}};
    char *help;

    LS_TRY(ls_flags_help(&flags, &help));
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        printf("%s\nExample: tacotron2 say w.safetensors \"Hello.\" -o hello.wav\n"
               "Page: docs/models.md\n",
               help);
    ls_flags_free(help);
    LS_TRY(ls_flags_parse(&flags, argc, argv, NULL));
    return s->help ? LS_OK : say(s);
}

int main(int argc, char **argv)
{
    static say_settings speech = {
        .output = "out.wav", .max_decoder_steps = 2000, .gate_threshold = 0.5};
    static settings s = {
        .common = {.epochs = 1501,
                   .batch_size = 32,
                   .optimizer = "adam",
                   .lr = 1e-3,
                   .weight_decay = 1e-6,
                   .clip_grad_norm = 1,
                   .data = "LJSpeech-1.1"},
        .validation = 100,
        .anneal_factor = 0.1,
    };

    if (argc > 1 && strcmp(argv[1], "say") == 0)
        return ls_train_exit("tacotron2", run_say(&speech, argc - 1, argv + 1));
    tacotron2_defaults(&s.config);
    return run_training(&s, argc, argv);
}
