"""What NumPy cannot export: bfloat16, memory of another device, memory at odd addresses."""

import ctypes

import numpy as np


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),  # null: this object owns everything
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

FLOAT, BFLOAT = 2, 4
CPU, CUDA = 1, 2


class DlpackObject:
    """Sees `array` as another element type of the same size, on another device, or some bytes further on."""

    def __init__(self, array, *, code=FLOAT, device=CPU, byte_offset=0, null=False):
        self.array = array
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(stride // array.itemsize for stride in array.strides))
        self.tensor = _Tensor(
            data=None if null else array.ctypes.data,
            device_type=device,
            axes=array.ndim,
            code=code,
            bits=8 * array.itemsize,
            lanes=1,
            shape=self.shape,
            strides=self.strides,
            byte_offset=byte_offset,
        )

    def __dlpack__(self, **_):
        return _new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.tensor.device_type, 0


def as_bfloat16(array):
    """float32 rounded to zero: the bfloat16 object, and the float32 values that it holds."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16
    return DlpackObject(bits.astype(np.uint16), code=BFLOAT), (bits << 16).view(np.float32)
