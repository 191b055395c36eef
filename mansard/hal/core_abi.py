"""What Python knows of the native core's interface: codes, structures and function signatures.

A mirror of ``mansard/include/mansard_core.h``, which documents all of it; `tests/native/test_mirrors.py`
compares the two.
"""

from __future__ import annotations

import ctypes
from typing import TypeAlias

Signatures: TypeAlias = dict[str, tuple[object, tuple[object, ...]]]
"""Result and arguments of functions, by name."""

OK, TIMEOUT, CLOSED, INVALID = 0, 1, 2, 3
FAILED, DEVICE, UNAVAILABLE, OUT_OF_MEMORY, DEVICE_LOST, EXECUTION, INPUT, WAIT_TIMEOUT = range(16, 24)
DEADLINE, CANCELLED = 24, 25
PENDING, REACHED, POISONED = 0, 1, 2
QUEUE_THREAD, QUEUE_INLINE, QUEUE_PULL = 0, 1, 2
CPU_DISPATCH, CPU_COPY, CPU_FILL, CPU_BARRIER = 0, 1, 2, 3
FOREVER = 2**64 - 1
QUEUE_RECORDS = 256


class PointStruct(ctypes.Structure):
    """``mn_point``."""

    _fields_ = (("timeline", ctypes.c_void_p), ("value", ctypes.c_uint64))


class SubmissionDescStruct(ctypes.Structure):
    """``mn_submission_desc``."""

    _fields_ = (
        ("waits", ctypes.POINTER(PointStruct)),
        ("signals", ctypes.POINTER(PointStruct)),
        ("slots", ctypes.POINTER(ctypes.c_uint64)),
        ("work", ctypes.c_void_p),
        ("token", ctypes.c_uint64),
        ("wait_count", ctypes.c_uint32),
        ("signal_count", ctypes.c_uint32),
        ("slot_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class RecordStruct(ctypes.Structure):
    """``mn_record``."""

    _fields_ = (
        ("token", ctypes.c_uint64),
        ("submit_ns", ctypes.c_uint64),
        ("ready_ns", ctypes.c_uint64),
        ("start_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
    )


class StatsStruct(ctypes.Structure):
    """``mn_queue_stats``."""

    _fields_ = (
        ("submitted", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("waiting", ctypes.c_uint64),
        ("running", ctypes.c_uint64),
        ("busy_ns", ctypes.c_uint64),
    )


class QueueOptionsStruct(ctypes.Structure):
    """``mn_queue_options``; only pull mode is created from Python, so callbacks stay null."""

    _fields_ = (
        ("label", ctypes.c_char_p),
        ("mode", ctypes.c_int),
        ("bind_cpu", ctypes.c_int),
        ("depth_ns", ctypes.c_uint64),
        ("execute", ctypes.c_void_p),
        ("execute_until", ctypes.c_void_p),
        ("caller_may_run", ctypes.c_void_p),
        ("call_later", ctypes.c_void_p),
        ("native_wait", ctypes.c_void_p),
        ("retain_work", ctypes.c_void_p),
        ("release_work", ctypes.c_void_p),
        ("release_context", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class CpuCommandStruct(ctypes.Structure):
    """``mn_cpu_command``."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("op", ctypes.c_uint32),
        ("table", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("pattern", ctypes.c_uint32),
    )


class CpuRelocStruct(ctypes.Structure):
    """``mn_cpu_reloc``."""

    _fields_ = (("word", ctypes.c_uint32), ("slot", ctypes.c_uint32), ("offset", ctypes.c_uint64))


class CpuOptionsStruct(ctypes.Structure):
    """``mn_cpu_options``."""

    _fields_ = (
        ("threads", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("cpus", ctypes.POINTER(ctypes.c_int)),
        ("spin_ns", ctypes.c_uint64),
    )


class CopyStruct(ctypes.Structure):
    """``mn_copy``."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("timeline", ctypes.c_void_p),
        ("value", ctypes.c_uint64),
    )


_ptr, _int, _u32, _u64, _text = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_char_p,
)
_size, _bool, _i32 = ctypes.c_size_t, ctypes.c_bool, ctypes.c_int32
_out_ptr, _out_u64, _out_u32 = ctypes.POINTER(_ptr), ctypes.POINTER(_u64), ctypes.POINTER(_u32)

SIGNATURES: Signatures = {
    "mn_status_create": (_ptr, (_int, _text, _u64)),
    "mn_status_release": (None, (_ptr,)),
    "mn_status_code": (_int, (_ptr,)),
    "mn_status_message": (_text, (_ptr,)),
    "mn_status_token": (_u64, (_ptr,)),
    "mn_status_take_released": (_size, (_out_u64, _size)),
    "mn_last_message": (_text, ()),
    "mn_now": (_u64, ()),
    "mn_timeline_create": (_ptr, (_text, _u64)),
    "mn_timeline_release": (None, (_ptr,)),
    "mn_timeline_value": (_u64, (_ptr,)),
    "mn_timeline_promised": (_u64, (_ptr,)),
    "mn_timeline_signal": (None, (_ptr, _u64)),
    "mn_timeline_fail_status": (None, (_ptr, _u64, _ptr)),
    "mn_timeline_set_priority": (None, (_ptr, _i32)),
    "mn_timeline_query": (_int, (_ptr, _u64, _out_ptr)),
    "mn_timeline_failure": (_ptr, (_ptr, _u64)),
    "mn_timeline_wait": (_int, (_ptr, _u64, _u64, _out_ptr)),
    "mn_queue_create": (_ptr, (ctypes.POINTER(QueueOptionsStruct),)),
    "mn_queue_release": (None, (_ptr,)),
    "mn_queue_submit": (_int, (_ptr, ctypes.POINTER(SubmissionDescStruct), _u32)),
    "mn_queue_pop": (_int, (_ptr, _u64, _out_ptr)),
    "mn_queue_close": (_int, (_ptr, _u64)),
    "mn_queue_poison": (None, (_ptr, _ptr)),
    "mn_withdraw": (None, (_ptr, _ptr)),
    "mn_queue_get_stats": (None, (_ptr, ctypes.POINTER(StatsStruct))),
    "mn_queue_retired": (_size, (_ptr, _out_u64, _size)),
    "mn_queue_records": (_size, (_ptr, ctypes.POINTER(RecordStruct), _size)),
    "mn_submission_token": (_u64, (_ptr,)),
    "mn_submission_set_times": (None, (_ptr, _u64, _u64)),
    "mn_submission_finish": (None, (_ptr, _ptr)),
    "mn_completion_create": (_ptr, ()),
    "mn_completion_release": (None, (_ptr,)),
    "mn_completion_add": (_int, (_ptr, _ptr, _u64, _u64)),
    "mn_completion_next": (_int, (_ptr, _u64, _out_u64, _u32, _out_u32)),
    "mn_completion_post": (None, (_ptr,)),
    "mn_completion_close": (None, (_ptr,)),
    "mn_cpu_list_create": (
        _ptr,
        (
            ctypes.POINTER(CpuCommandStruct),
            _u32,
            _out_u64,
            _u32,
            ctypes.POINTER(CpuRelocStruct),
            _u32,
            _bool,
        ),
    ),
    "mn_cpu_list_release": (None, (_ptr,)),
    "mn_cpu_list_times": (_size, (_ptr, _out_u64, _size)),
    "mn_cpu_queue_create": (_ptr, (_text, ctypes.POINTER(CpuOptionsStruct))),
    "mn_cpu_queue_inject": (None, (_ptr, _u64, _ptr)),
    "mn_cpu_queue_let_go": (None, (_ptr,)),
    "mn_memory_map": (_int, (_u64, _out_u64)),
    "mn_memory_unmap": (None, (_u64, _u64)),
    "mn_memory_small_pages": (None, (_u64, _u64)),
    "mn_code_map": (_int, (_ptr, _u64, _out_u64)),
    "mn_code_map_file": (_int, (_int, _u64, _u64, _out_u64)),
    "mn_code_unmap": (None, (_u64, _u64)),
    "mn_copy_all": (None, (ctypes.POINTER(CopyStruct), _u32, _u32)),
}
"""Result and arguments of every function called from Python, by name."""
