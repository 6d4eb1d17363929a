# SPDX-License-Identifier: Apache-2.0
"""name_list.py: options of the scripts that take names with commas between them."""
import argparse


def names_of(known):
    """For `type` of argparse's add_argument(): the list of the names, each one of `known`."""
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names
    return parse
