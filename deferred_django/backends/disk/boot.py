"""Which boot of the host this is: a run that an earlier boot cut off was no crash of a worker."""

from __future__ import annotations

import functools
import re
import subprocess
import sys


@functools.cache
def boot_id() -> str:
    """A name for this boot of the host, the same in all its processes and containers."""
    if sys.platform == "darwin":  # pragma: no cover - not run there
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            check=False,
            text=True,
        ).stdout
    else:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_file:
                answer = boot_file.read()
        except OSError:
            answer = ""
    return re.sub(r"[^A-Za-z0-9-]", "", answer) or "unknown"
