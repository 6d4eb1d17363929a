/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_refusals.h - why arguments are refused. The texts are _refusals.py's. */
#ifndef LOCKSTEP_TORCH_ADAPTER_REFUSALS_H
#define LOCKSTEP_TORCH_ADAPTER_REFUSALS_H

#include <c10/util/Exception.h>

#include <map>
#include <string>
#include <utility>

namespace lockstep_torch
{

inline std::map<std::string, std::string> refusals; // by name

inline void set_refusal(std::string name, std::string text)
{
    refusals[std::move(name)] = std::move(text);
}

inline void fill_in(std::string &text, const std::string &value)
{
    text.replace(text.find("{}"), 2, value);
}

/* Throws the text of this name, unless the arguments are right. */
template <typename... Values> void check(bool is_right, const char *name, const Values &...values)
{
    if (is_right)
        return;
    std::string text = refusals.at(name);

    (fill_in(text, c10::str(values)), ...);
    TORCH_CHECK_VALUE(false, "lockstep: ", text);
}

} // namespace lockstep_torch

#endif
