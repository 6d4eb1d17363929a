# SPDX-License-Identifier: Apache-2.0
"""Recipe for spack. It builds this tree: spack dev-build lockstep@0.1.0."""
from spack.package import *


class Lockstep(CMakePackage):
    """Distributed data-parallel training in C: a library, a launcher, programs."""

    maintainers = []
    license("Apache-2.0")
    version("0.1.0")

    variant("onednn", default=True, description="Compute on processors with oneDNN")
    variant("cuda", default=False, description="Compute on NVIDIA's cards")
    variant("gloo", default=False, description="Backend over Gloo")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+gloo")
    depends_on("cmake@3.16:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libsodium")
    depends_on("jansson")
    depends_on("ncurses")
    depends_on("zlib-api")
    depends_on("libjpeg-turbo")
    depends_on("libspng")
    depends_on("onednn@2:3 cpu_runtime=omp", when="+onednn")
    depends_on("gloo", when="+gloo")
    depends_on("cuda@12:13", when="+cuda")
    depends_on("cudnn@9:", when="+cuda")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define("LOCKSTEP_TESTS", False),
            self.define("LOCKSTEP_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("LOCKSTEP_SPEECH", False),  # spack has no kissfft
        ]

    def setup_run_environment(self, env):
        # What the library loads with dlopen() for the first picture or .gz file.
        for name in ("zlib-api", "libjpeg-turbo", "libspng"):
            env.prepend_path("LD_LIBRARY_PATH", self.spec[name].prefix.lib)
