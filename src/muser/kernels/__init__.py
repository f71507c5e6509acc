"""Kernels as text, compiled at first use: source, library, pipeline."""

from muser.kernels.arguments import CACHE_LINE, Args, Entry, StepBlock, address, zeros
from muser.kernels.compiler import Compiler, find_compiler
from muser.kernels.constants import MAX_THREADS, Constants, Outcome
from muser.kernels.cuda_library import CudaLibrary, load_cuda
from muser.kernels.cuda_registry import CUDA_KERNELS
from muser.kernels.library import (
    ISA_BITS,
    Library,
    choose_library,
    load_library,
    processor_of,
    supported_isas,
)
from muser.kernels.registry import BUCKETS, REGISTRY, Pipeline, bucket_of, pipeline
from muser.kernels.shelf import Shelf
from muser.kernels.source import Source, read_source

__all__ = [
    "BUCKETS",
    "CACHE_LINE",
    "CUDA_KERNELS",
    "ISA_BITS",
    "MAX_THREADS",
    "REGISTRY",
    "Args",
    "Compiler",
    "Constants",
    "CudaLibrary",
    "Entry",
    "Library",
    "Outcome",
    "Pipeline",
    "Shelf",
    "Source",
    "StepBlock",
    "address",
    "bucket_of",
    "choose_library",
    "find_compiler",
    "load_cuda",
    "load_library",
    "pipeline",
    "processor_of",
    "read_source",
    "supported_isas",
    "zeros",
]
