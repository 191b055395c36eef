"""Builds the native core; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "mansard._core",
            sources=sorted(str(p) for p in Path("src").rglob("*.c")),
            include_dirs=["src", "mansard/include"],
            depends=sorted(str(p) for p in [*Path("src").rglob("*.h"), *Path("mansard/include").glob("*.h")]),
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
