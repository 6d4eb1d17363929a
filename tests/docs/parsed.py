# SPDX-License-Identifier: Apache-2.0
"""parsed.py SCRIPT ARGUMENT...: runs a Python script up to where argparse has read its arguments.

Ends with 0 where they are right. Scripts that do not use argparse run to their end.
"""
import argparse
import os
import runpy
import sys

parse = argparse.ArgumentParser.parse_args


def parse_only(self, *arguments):
    parse(self, *arguments)
    os._exit(0)


script = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(script))
argparse.ArgumentParser.parse_args = parse_only
runpy.run_path(script, run_name="__main__")
