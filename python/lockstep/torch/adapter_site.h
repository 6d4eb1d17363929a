/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter_site.h - where the program calls an operation: "train.py:41 [64,1024]", which errors,
 * wait reports and traces of liblockstep show. Threads that Python does not know, such as those of
 * autograd, are named by the shape alone.
 */
#ifndef LOCKSTEP_TORCH_ADAPTER_SITE_H
#define LOCKSTEP_TORCH_ADAPTER_SITE_H

#include "adapter_python.h"

#include <lockstep/comm.h>

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep_torch
{

/* The program's lines. One object, which lives as long as the process. */
class call_sites
{
  public:
    /* Files in these folders are not the program's. */
    explicit call_sites(std::vector<std::string> not_the_program) : own(std::move(not_the_program))
    {
    }

    /* Names the operations that this thread starts next. `shown`: its shape; may be NULL. */
    void mark(const at::Tensor *shown)
    {
        std::string site = program_line();

        if (shown != nullptr) {
            site += site.empty() ? "[" : " [";
            for (int64_t i = 0; i < shown->dim(); i++)
                site += (i == 0 ? "" : ",") + std::to_string(shown->size(i));
            site += "]";
        }
        ls_comm_set_site(site.c_str());
    }

  private:
    static constexpr size_t KNOWN_MAX = 4096;

    /* "train.py:41" of the innermost frame of the program; "" where there is none. */
    std::string program_line()
    {
        std::string found;

        if (!py.knows_this_thread())
            return found;
        const int state = py.ensure();
        void *frame = py.frame();

        if (frame != nullptr)
            py.keep(frame);
        while (frame != nullptr) {
            void *const code = py.code(frame);
            const std::string &name = program_file(code);

            if (!name.empty())
                found = line_text(code, name, frame);
            py.drop(code);
            void *const caller = found.empty() ? py.back(frame) : nullptr;
            py.drop(frame);
            frame = caller;
        }
        py.release(state);
        return found;
    }

    /* Finding a line number takes as long as the rest of a small operation. With the GIL. */
    std::string line_text(void *code, const std::string &name, void *frame)
    {
        if (py.instruction == nullptr)
            return name + ":" + std::to_string(py.line(frame));
        if (lines.size() >= KNOWN_MAX)
            lines.clear();
        std::string &text = lines[{code, py.instruction(frame)}];

        if (text.empty())
            text = name + ":" + std::to_string(py.line(frame));
        return text;
    }

    /* The name of a code object's file without its folder, "" if it is not the program's. The
     * reference that is kept makes the address unique. With the GIL. */
    const std::string &program_file(void *code)
    {
        const auto at = known.find(code);

        if (at != known.end())
            return at->second;
        if (known.size() >= KNOWN_MAX) {
            for (const auto &entry : known)
                py.drop(entry.first);
            known.clear();
            lines.clear();
        }
        py.keep(code);
        return known[code] = look_up(code);
    }

    std::string look_up(void *code) const
    {
        void *const object = py.attribute(code, "co_filename");
        const char *const path = object == nullptr ? nullptr : py.text(object, nullptr);
        std::string name = path == nullptr ? "" : path;

        py.clear();
        if (object != nullptr)
            py.drop(object);
        for (const std::string &folder : own)
            if (name.compare(0, folder.size(), folder) == 0)
                return "";
        return name.substr(name.rfind('/') + 1);
    }

    const python &py = python::here();
    const std::vector<std::string> own;
    std::unordered_map<void *, std::string> known;       // by code object; guarded by the GIL
    std::map<std::pair<void *, int>, std::string> lines; // by code object and instruction; the same
};

} // namespace lockstep_torch

#endif
