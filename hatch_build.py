"""The package's build: compiles the native kernels where there is a compiler, and goes on without."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "csrc"))


class NativeKernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        from build import NoCompiler, build

        if self.target_name != "wheel":
            return
        try:
            # A wheel may go to another machine.
            libraries = build(all_levels=version != "editable")
        except NoCompiler as e:
            self.app.display_warning(f"nextn: native CPU kernels are left out, plain torch serves: {e}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        root = Path(self.root)
        build_data["artifacts"] += [str(path.relative_to(root)) for path in libraries]
