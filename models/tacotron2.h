/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tacotron2.h - Tacotron2 (Shen et al., "Natural TTS Synthesis by Conditioning WaveNet on Mel
 * Spectrogram Predictions", 2018): mel spectrograms from the ids of a text. Structure, names of
 * parameters, initial values and defaults are those of NVIDIA's DeepLearningExamples: each loads
 * weights that the other has saved.
 *
 * Shapes     N sentences of at most S ids, and mels of at most T decoder steps; a step has R frames
 *            (n_frames_per_step) of B bands. A mel is (N,T,R*B): in memory the same as (N,T*R,B).
 * Errors     The model stores them (ls_model_status()) or, in forward, the tape.
 */
#ifndef MODELS_TACOTRON2_H
#define MODELS_TACOTRON2_H

#include <lockstep/nn.h>

#include <stddef.h>

enum { TACOTRON2_MAX_CONVOLUTIONS = 16 };

/* The names are those of NVIDIA's flags. */
typedef struct tacotron2_config {
    int64_t n_mel_channels;
    int64_t n_symbols;
    int64_t symbols_embedding_dim; /* equal to encoder_embedding_dim */
    int64_t encoder_kernel_size;   /* kernels have odd sizes */
    int64_t encoder_n_convolutions;
    int64_t encoder_embedding_dim; /* even */
    int64_t attention_rnn_dim;
    int64_t attention_dim;
    int64_t attention_location_n_filters;
    int64_t attention_location_kernel_size;
    int64_t n_frames_per_step;
    int64_t decoder_rnn_dim;
    int64_t prenet_dim;
    double p_attention_dropout;
    double p_decoder_dropout;
    int64_t postnet_embedding_dim;
    int64_t postnet_kernel_size;
    int64_t postnet_n_convolutions; /* at least 2 */
    /* 1: behind the end of a sentence mels are 0 and gate logits 1000, so that they add nothing to
     * the loss of targets padded with 0 and 1 */
    int mask_padding;
    /* 1: weights of batch norms begin with 1; else uniform in 0..1 */
    int disable_uniform_initialize_bn_weight;
    /* NVIDIA has these as constants. */
    double p_convolution_dropout; /* of encoder and postnet */
    double p_prenet_dropout;      /* in training and in evaluation */
    /* In training backward computes the values of the decoder again, this many steps (0 to 64) at a
     * time, and memory holds those of so many steps only; gradients are the same. 0: all are kept.
     */
    int64_t checkpoint_steps;
} tacotron2_config;

/* NVIDIA's defaults. */
void tacotron2_defaults(tacotron2_config *out);

/* NULL, or what a network cannot have: "encoder_kernel_size is 4; it must be odd". */
const char *tacotron2_check(const tacotron2_config *config);

/* The sizes of the network whose weights are in the file, into *config; it keeps the other fields.
 * It does not verify the file. LS_EFORMAT: they are not those of a Tacotron2. */
LS_MUST_USE ls_status tacotron2_read_sizes(const char *weights, tacotron2_config *config);

typedef struct tacotron2 {
    tacotron2_config config;
    ls_tensor *embedding;
    ls_layer *encoder[TACOTRON2_MAX_CONVOLUTIONS][2]; /* convolution, batch norm */
    ls_layer *encoder_lstm;
    ls_layer *prenet[2];
    ls_layer *attention_rnn;
    ls_layer *query, *memory, *energy, *location_conv, *location_dense;
    ls_layer *decoder_rnn;
    ls_layer *projection, *gate;
    ls_layer *postnet[TACOTRON2_MAX_CONVOLUTIONS][2];
    ls_tensor *zero; /* (1), owned: what the decoder starts from */
} tacotron2;

/* Adds the layers to `model`; ls_model_status() returns a failure. `config` is valid
 * (tacotron2_check()). LS_ENOMEM. Destroy the network before the model's device is closed. */
LS_MUST_USE ls_status tacotron2_create(ls_model *model, const tacotron2_config *config,
                                       tacotron2 *net);
void tacotron2_destroy(tacotron2 *net); /* one of zeros is allowed */

typedef struct tacotron2_batch {
    ls_tensor *text;         /* (N,S) int64; the convolutions read what is behind the end */
    ls_tensor *text_lengths; /* (N) int64 */
    ls_tensor *text_padding; /* (N,1,S) uint8: not 0 behind the end; NULL: no padding */
    ls_tensor *mel;          /* (N,T,R*B): the targets, which are also the decoder's input */
    ls_tensor *mel_padding;  /* (N,T,1) uint8, as text_padding */
    ls_tensor *gate;         /* (N,T,1): 1 in the last step and behind it, else 0 */
    ls_tensor *guide;        /* (N,T,S), of tacotron2_guide(); NULL: no guided attention */
} tacotron2_batch;

typedef struct tacotron2_output {
    ls_tensor *mel;         /* (N,T,R*B) */
    ls_tensor *mel_postnet; /* (N,T,R*B) */
    ls_tensor *gate;        /* (N,T,1): logits of the end */
    ls_tensor *alignment;   /* (N,T,S): attention weights; NULL in training without guide */
} tacotron2_output;

/* Teacher forcing. The random numbers are those of ls_tape_set_random(), also in evaluation: the
 * prenet's dropout stays. Returns the tape's status, or LS_ENOMEM. */
LS_MUST_USE ls_status tacotron2_forward(const tacotron2 *net, ls_tape *tape,
                                        const tacotron2_batch *batch, tacotron2_output *out);

/* Mean squared errors of mel and mel_postnet, and binary cross-entropy of gate, each a mean over
 * all N * T steps, those behind the ends of sentences included, as NVIDIA's; and the guided
 * attention, if the batch has one. */
ls_tensor *tacotron2_loss(ls_tape *tape, const tacotron2_output *out, const tacotron2_batch *batch);

/*
 * The guided attention of Tachibana et al., "Efficiently Trainable Text-to-Speech System Based on
 * Deep Convolutional Networks with Guided Attention", 2017, section 4: what attention far from the
 * diagonal costs. With the tensor `guide` in the batch, tacotron2_loss() adds the sum of its
 * product with the alignment: `weight` times the mean over all steps of the sum over all ids of
 *
 *     a(t,s) * (1 - exp(-(s / n_ids - t / steps)^2 / (2 * 0.2^2)))
 *
 * (the paper has the mean over the ids). Writes guide[rows][T][S]; it is 0 behind the ends of
 * sentences. The tensor must live until the batch's backward pass has ended.
 */
void tacotron2_guide(const int64_t *steps, const int64_t *n_ids, size_t rows, size_t T, size_t S,
                     double weight, float *guide);

typedef struct tacotron2_speech {
    float *mel;       /* [steps * R][B], after the postnet */
    float *alignment; /* [steps][n_ids] */
    size_t steps;
    int has_ended; /* 0: max_steps was reached before the gate opened */
} tacotron2_speech;

/*
 * The mel of a text, step by step, each from the frames before it; it ends with the step whose gate
 * is over `gate_threshold` (NVIDIA's is 0.5), which is part of it, or after max_steps. The tape,
 * which must not be in training mode, is reset. `seed` decides the prenet's dropout. The caller
 * calls tacotron2_speech_free(). Fails with the tape's failure, or LS_ENOMEM.
 */
LS_MUST_USE ls_status tacotron2_speak(const tacotron2 *net, ls_tape *tape, const int64_t *ids,
                                      size_t n_ids, double gate_threshold, int64_t max_steps,
                                      uint64_t seed, tacotron2_speech *out);
void tacotron2_speech_free(tacotron2_speech *speech); /* one of zeros is allowed */

/*
 * How diagonal an attention is: the share of the attention mass of `steps` decoder steps with
 * |s / n_ids - t / steps| <= TACOTRON2_BAND, s and t the middles of id and step. Speech has an even
 * speed, roughly, so a network that has learned to read is near 1; the same weight for all ids is
 * about 0.36. `row` is the distance from step to step in `alignment`, at least n_ids.
 */
#define TACOTRON2_BAND 0.2
double tacotron2_diagonal(const float *alignment, size_t steps, size_t n_ids, size_t row);

#endif
