/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_rules.h - the rules of local SGD: fragments, when their means are due, and the outer
 * optimizer. Pure.
 *
 * Sources: Douillard et al. 2023 (DiLoCo, arXiv 2311.08105): islands take H steps with an inner
 * optimizer, and the mean of their parameter differences is the gradient of an outer one, SGD with
 * Nesterov momentum. Douillard et al. 2025 (Streaming DiLoCo, arXiv 2501.18512): a fragment of the
 * parameters at a time, sent while islands train on (there: tau steps, alpha the share).
 */
#ifndef LS_DDP_LOCAL_RULES_H
#define LS_DDP_LOCAL_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Divides parameters into contiguous fragments of about equal elements: of[i] is that of parameter
 * i, which never decreases. A fragment may be empty. */
void local_divide(const size_t *counts, int n, int fragments, int *of);

/* Whether the mean of a fragment follows on step `step`, counted from 1: every `every` steps, those
 * of the fragments evenly apart, that of the last one on multiples of `every`. */
bool local_is_due(int64_t step, int64_t every, int fragment, int fragments);

/* The outer optimizer, as torch.optim.SGD with nesterov=True where momentum is above 0:
 *     m = momentum m + d;  p -= lr (d + momentum m)
 * with d, the mean of (p - parameters of an island) over the islands, as the gradient. */
void local_outer_step(float *p, float *m, const float *d, size_t n, float lr, float momentum);

/* An island goes on from its parameters, which have taken steps while the mean was sent, and those
 * of the outer optimizer:  own = share own + (1 - share) p */
void local_mix(float *own, const float *p, size_t n, float share);

#endif
