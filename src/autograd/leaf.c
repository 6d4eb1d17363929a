/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf.c - leaves: tensors of the caller that backward computes gradients for, and the memory of
 * these gradients, which ddp places into its buckets.
 */
#include "autograd/tape.h"

#include "base/alloc.h"

static void leaf_drop(tensor_extra *extra)
{
    leaf *l = (leaf *)(void *)extra;

    ls_tensor_destroy(l->own);
    weights_forget(l);
    ls_free(l);
}

ls_status ls_require_grad(ls_tensor *t)
{
    char text[TENSOR_TEXT_BYTES];
    leaf *l = leaf_record_of(t);

    if (t == NULL)
        return ls_fail(LS_EINVAL, "require_grad: the tensor is NULL");
    if (l != NULL) {
        l->is_frozen = false;
        return LS_OK;
    }
    if (t->extra != NULL)
        return ls_fail(LS_EINVAL, "require_grad: %s is the result of an operator, not a leaf",
                       tensor_text(text, sizeof(text), t));
    if (t->dtype != LS_F32 && t->dtype != LS_F64)
        return ls_fail(LS_EINVAL, "require_grad: %s must be float32 or float64",
                       tensor_text(text, sizeof(text), t));
    LS_TRY(LS_NEW(&l, 1, "for a leaf"));
    l->extra.drop = leaf_drop;
    t->extra = &l->extra;
    return LS_OK;
}

void autograd_freeze(ls_tensor *t)
{
    leaf *l = leaf_record_of(t);

    LS_ASSERT(l != NULL);
    l->is_frozen = true;
    l->has_grad = false;
}

bool autograd_is_frozen(const ls_tensor *t)
{
    const leaf *l = leaf_record_of(t);

    return l != NULL && l->is_frozen;
}

ls_tensor *autograd_grad_memory(const ls_tensor *t)
{
    const leaf *l = leaf_of(t);

    if (l == NULL)
        return NULL;
    return l->target != NULL ? l->target : l->own;
}

ls_status leaf_grad_memory(ls_tensor *t, ls_tensor **out)
{
    leaf *l = leaf_of(t);

    LS_ASSERT(l != NULL);
    if (l->target == NULL && l->own == NULL)
        LS_TRY(ls_tensor_create(t->device, t->dtype, t->n_dims, t->dims, &l->own));
    *out = autograd_grad_memory(t);
    return LS_OK;
}

ls_tensor *ls_grad(const ls_tensor *t)
{
    const leaf *l = leaf_of(t);
    const value *v = value_of(t);

    if (l != NULL && l->has_grad)
        return autograd_grad_memory(t);
    return v != NULL && v->is_retained ? v->grad : NULL;
}

void ls_zero_grad(ls_tensor *t)
{
    leaf *l = leaf_of(t);

    if (l != NULL)
        l->has_grad = false;
}

void autograd_set_has_grad(ls_tensor *t, bool has_grad)
{
    leaf *l = leaf_of(t);

    if (l != NULL)
        l->has_grad = has_grad && autograd_grad_memory(t) != NULL;
}

bool autograd_claim(ls_tensor *t, const autograd_owner *owner, const char *name)
{
    leaf *l = leaf_record_of(t);

    LS_ASSERT(l != NULL);
    if (l->owner != NULL)
        return false;
    l->owner = owner;
    l->owner_name = name;
    return true;
}

void autograd_release(ls_tensor *t, const autograd_owner *owner)
{
    leaf *l = leaf_record_of(t);

    if (l != NULL && l->owner == owner)
        l->owner = NULL;
}

ls_status autograd_create_state(const ls_tensor *t, const autograd_owner *owner, struct leaf **out)
{
    const leaf *l = leaf_record_of(t);
    leaf *state;

    LS_ASSERT(l != NULL);
    LS_TRY(LS_NEW(&state, 1, "for a second state of %s", l->owner_name));
    *state = (leaf){
        .extra = l->extra, .owner = owner, .owner_name = l->owner_name, .is_frozen = l->is_frozen};
    *out = state;
    return LS_OK;
}

void autograd_destroy_state(struct leaf *state)
{
    if (state != NULL)
        leaf_drop(&state->extra);
}

void autograd_exchange_state(ls_tensor *t, struct leaf *state)
{
    leaf *l = leaf_record_of(t);
    leaf was;

    LS_ASSERT(l != NULL);
    was = *l;
    *l = *state;
    *state = was;
}

ls_tensor *autograd_state_grad(const struct leaf *state)
{
    return state->has_grad ? state->own : NULL;
}

/* Copies the gradient from the target into the leaf's own memory; without memory forgets it. */
static void leave_target(ls_tensor *t, leaf *l)
{
    ls_tensor *was = l->target;
    ls_tensor *own;

    l->target = NULL;
    if (was != NULL && l->has_grad)
        l->has_grad = leaf_grad_memory(t, &own) == LS_OK && ls_tensor_copy(own, was) == LS_OK;
}

ls_status autograd_set_grad_target(ls_tensor *t, ls_tensor *target)
{
    char is[TENSOR_TEXT_BYTES];
    char wanted[TENSOR_TEXT_BYTES];
    leaf *l = leaf_record_of(t);

    if (l == NULL)
        return target == NULL ? LS_OK : ls_fail(LS_EINVAL, "gradient target: not a leaf");
    if (target == NULL) {
        leave_target(t, l);
        return LS_OK;
    }
    if (target->dtype != t->dtype || !tensor_same_shape(target, t) || target->device != t->device ||
        !tensor_is_plain(target))
        return ls_fail(LS_EINVAL, "gradient target: %s does not match the leaf %s",
                       tensor_text(is, sizeof(is), target), tensor_text(wanted, sizeof(wanted), t));
    if (l->has_grad)
        LS_TRY(ls_tensor_copy(target, autograd_grad_memory(t)));
    ls_tensor_destroy(l->own);
    l->own = NULL;
    l->target = target;
    return LS_OK;
}
