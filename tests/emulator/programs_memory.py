"""What the tests of the emulated memory run, each function in a process of its own."""

from __future__ import annotations

import array
import os
import socket
import threading

from tests.emulator.face import (
    NOT_READY,
    UNIT,
    Access,
    Gpu,
    Properties,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint64,
    c_ulonglong,
    c_void_p,
    ctypes,
    open_files,
    peek,
    poke,
)

INVALID = 1
OUT_OF_MEMORY = 2


def devices(platform: str, library: str | None = None) -> None:
    gpu = Gpu(platform, library)
    count = c_int()
    gpu.ok("DeviceGetCount" if gpu.cuda else "GetDeviceCount", byref(count))
    for device in range(count.value):
        name, uuid, address = (ctypes.create_string_buffer(size) for size in (64, 17, 16))
        total = c_size_t()
        gpu.ok("DeviceGetName", name, 64, device)
        gpu.ok("DeviceGetUuid", uuid, device)
        gpu.ok("DeviceGetPCIBusId", address, 16, device)
        gpu.ok("DeviceTotalMem", byref(total), device)
        serial = uuid.raw[8:16].hex() if gpu.cuda else uuid.raw[:16].decode()
        print(name.value.decode(), serial, address.value.decode(), total.value, sep="|")
    assert gpu.call("DeviceGetName", name, 64, count.value) == 101


def versions() -> None:
    version = c_int()
    gpu = Gpu("hip")
    gpu.ok("RuntimeGetVersion", byref(version))
    runtime = ctypes.CDLL("libcudart.so.13")
    other = c_int()
    assert runtime.cudaRuntimeGetVersion(byref(other)) == 0
    print(version.value, other.value)


def no_device() -> None:
    hip = ctypes.CDLL("libamdhip64.so.7")
    count = c_int(7)
    assert hip.hipInit(0) == 100
    assert hip.hipGetDeviceCount(byref(count)) == 100
    assert count.value == 0
    hip.hipGetErrorName.restype = c_char_p
    assert hip.hipGetErrorName(100) == b"hipErrorNoDevice"
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuDeviceGetCount(byref(count)) == 3  # not initialized
    assert cuda.cuInit(0) == 100
    name = c_char_p()
    assert cuda.cuGetErrorName(100, byref(name)) == 0
    assert name.value == b"CUDA_ERROR_NO_DEVICE"
    assert cuda.cuGetErrorName(12345, byref(name)) == INVALID
    assert ctypes.CDLL("libcudart.so.13").cudaGetDeviceCount(byref(count)) == 100


def markers(*names: str) -> None:
    for name in names:
        library = ctypes.CDLL(f"lib{name}")
        assert b"EMULATOR" in (ctypes.c_char * 200).in_dll(library, "slurmmesh_emulator").value
    for name in ("libamdhip64.so.7", "libcuda.so.1"):
        version = ctypes.CDLL(name).slurmmesh_emulator_version
        version.restype = c_char_p
        assert b"EMULATOR" in version()


def life(platform: str, library: str | None = None) -> None:
    """All the calls once, in the order of a life, and every limit they have."""
    gpu = Gpu(platform, library)
    granularity = c_size_t()
    properties = Properties(1, 1, 1, 0)
    gpu.ok("MemGetAllocationGranularity", byref(granularity), byref(properties), 0)
    assert granularity.value == UNIT
    handle = c_uint64()
    for size in (0, 1, UNIT - 1, UNIT + 4096):
        assert gpu.call("MemCreate", byref(handle), size, byref(properties), 0) == INVALID
    for bad in (Properties(0, 1, 1, 0), Properties(1, 1, 0, 0), Properties(1, 2, 1, 0)):
        assert gpu.call("MemCreate", byref(handle), UNIT, byref(bad), 0) == INVALID
    far = Properties(1, 1, 1, 9)
    assert gpu.call("MemCreate", byref(handle), UNIT, byref(far), 0) == 101

    first, second = gpu.create(UNIT), gpu.create(2 * UNIT)
    base = gpu.reserve(8 * UNIT, alignment=16 * UNIT)
    assert base % (16 * UNIT) == 0
    assert gpu.call("MemMap", base, UNIT, UNIT, second, 0) == INVALID  # an offset
    assert gpu.call("MemMap", base, 2 * UNIT, 0, first, 0) == INVALID  # more than it has
    assert gpu.call("MemMap", base + 4096, UNIT, 0, first, 0) == INVALID
    assert gpu.call("MemMap", base + 7 * UNIT, 2 * UNIT, 0, second, 0) == INVALID  # past the end
    gpu.map(base, UNIT, first)
    assert gpu.call("MemMap", base, UNIT, 0, first, 0) in (INVALID, 208)
    gpu.map(base + UNIT, 2 * UNIT, second)
    assert gpu.call("MemAddressFree", base, 8 * UNIT) == INVALID  # still mapped

    # Nobody may touch it before access is set.
    assert copy(gpu, base, b"x") == INVALID
    assert gpu.call("MemSetAccess", base, UNIT // 2, byref(Access(1, 0, 3)), 1) == INVALID
    assert gpu.call("MemSetAccess", base, 8 * UNIT, byref(Access(1, 0, 3)), 1) == INVALID
    assert gpu.call("MemSetAccess", base, UNIT, byref(Access(1, 0, 2)), 1) == INVALID
    gpu.unlock(base, 3 * UNIT)
    assert copy(gpu, base, b"hello") == 0
    assert peek(base, 5) == b"hello"
    flags = c_ulonglong()
    location = (c_int * 2)(1, 0)
    gpu.ok("MemGetAccess", byref(flags), location, base)
    assert flags.value == 3
    gpu.unlock(base, UNIT, flags=1)
    assert copy(gpu, base, b"x") == INVALID

    start, size = c_uint64(), c_size_t()
    gpu.ok("MemGetAddressRange", byref(start), byref(size), base + 2 * UNIT)
    assert (start.value, size.value) == (base + UNIT, 2 * UNIT)
    kept = c_uint64()
    gpu.ok("MemRetainAllocationHandle", byref(kept), base)
    assert kept.value == first
    for _ in range(2):
        gpu.ok("MemRelease", first)
    assert gpu.call("MemRelease", first) == INVALID  # mapped, but no handle is left
    gpu.ok("MemRelease", second)
    assert gpu.alive()["allocations"] == 2  # the mappings keep them

    assert gpu.call("MemUnmap", base, 2 * UNIT) == INVALID  # half of the second
    gpu.ok("MemUnmap", base, 3 * UNIT)
    gpu.ok("MemAddressFree", base, 8 * UNIT)
    assert gpu.call("MemAddressFree", base, 8 * UNIT) == INVALID
    assert set(gpu.alive().values()) == {0}


def copy(gpu: Gpu, address: int, data: bytes) -> int:
    """The status of a copy to the device."""
    if gpu.cuda:
        return gpu.call("MemcpyHtoD", address, data, len(data))
    return gpu.call("Memcpy", address, data, len(data), 1)


def copies(platform: str) -> None:
    gpu = Gpu(platform)
    back = ctypes.create_string_buffer(8)
    with gpu.memory() as address:
        fill = "MemsetD8" if gpu.cuda else "Memset"
        gpu.ok(fill, address, 7, UNIT)
        if gpu.cuda:
            gpu.ok("MemcpyDtoH", back, address, 8)
        else:
            gpu.ok("Memcpy", back, address, 8, 2)
            assert gpu.call("Memcpy", back, address, 8, 1) == INVALID  # the wrong way
        assert back.raw == b"\7" * 8
        assert gpu.call(fill, ctypes.addressof(back), 7, 8) == INVALID  # not device memory
        kind, device = c_int(), c_int()
        gpu.ok("PointerGetAttribute", byref(kind), 2, address)
        gpu.ok("PointerGetAttribute", byref(device), 9, address + 100)
        assert (kind.value, device.value) == (2, 0)
        assert gpu.call("PointerGetAttribute", byref(kind), 2, ctypes.addressof(back)) == INVALID


def limit(platform: str) -> None:
    """With 4 units of memory on each of two devices."""
    gpu = Gpu(platform)
    handles = [gpu.create(2 * UNIT), gpu.create(2 * UNIT)]
    handle = c_uint64()
    properties = Properties(1, 1, 1, 0)
    assert gpu.call("MemCreate", byref(handle), UNIT, byref(properties), 0) == OUT_OF_MEMORY
    other = gpu.create(4 * UNIT, device=1)
    gpu.ok("MemRelease", handles.pop())
    handles.append(gpu.create(UNIT))
    free, total = c_size_t(), c_size_t()
    gpu.ok("MemGetInfo", byref(free), byref(total))
    assert (free.value, total.value) == (UNIT, 4 * UNIT)
    for one in (*handles, other):
        gpu.ok("MemRelease", one)
    assert set(gpu.alive().values()) == {0}


def last_error(keeps: bool) -> None:
    """From HIP 7 on a success does not clear the last error; before it does."""
    gpu = Gpu("hip")
    count = c_int()
    assert gpu.call("SetDevice", 5) == 101
    gpu.ok("GetDeviceCount", byref(count))
    assert gpu.call("PeekAtLastError") == (101 if keeps else 0)
    assert gpu.call("GetLastError") == (101 if keeps else 0)
    assert gpu.call("GetLastError") == 0


def forked() -> None:
    gpu = Gpu("hip")
    child = os.fork()
    if child == 0:
        status = gpu.call("SetDevice", 0)
        os._exit(0 if status == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def sharer(platform: str, path: str) -> None:
    """Sends two extents to the sharee and waits for what it writes into them."""
    gpu = Gpu(platform)
    handle, address = gpu.create(), gpu.reserve(UNIT)
    gpu.map(address, UNIT, handle)
    gpu.unlock(address, UNIT)
    poke(address, b"from the sharer")
    fd = gpu.export(handle)
    gpu.ok("MemRelease", handle)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("listening", flush=True)
        peer, _ = listener.accept()
    with peer:
        socket.send_fds(peer, [b"f"], [fd])
        os.close(fd)
        assert peer.recv(1) == b"w"
        assert peek(address + 100, 15) == b"from the sharee"
    gpu.ok("MemUnmap", address, UNIT)
    gpu.ok("MemAddressFree", address, UNIT)


def sharee(platform: str, path: str, by_pointer: bool, library: str | None = None) -> None:
    gpu = Gpu(platform, library)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        _, fds, _, _ = socket.recv_fds(peer, 1, 1)
        handle = gpu.adopt(fds[0], by_pointer)
        os.close(fds[0])
        address = gpu.reserve(UNIT)
        gpu.map(address, UNIT, handle)
        gpu.unlock(address, UNIT)
        assert peek(address, 15) == b"from the sharer"
        poke(address + 100, b"from the sharee")
        peer.sendall(b"w")
    gpu.ok("MemRelease", handle)
    gpu.ok("MemUnmap", address, UNIT)
    gpu.ok("MemAddressFree", address, UNIT)
    assert set(gpu.alive().values()) == {0}


def imports(by_pointer: bool) -> None:
    """What is no memory is refused; the wrong way to pass a descriptor too."""
    gpu = Gpu("hip")
    handle = gpu.create()
    fd = gpu.export(handle)
    gpu.ok("MemRelease", gpu.adopt(fd, by_pointer))
    out = c_uint64()
    wrong = fd if by_pointer else byref(c_int(fd))
    assert gpu.call("MemImportFromShareableHandle", byref(out), wrong, 1) == INVALID
    with open(__file__) as file:
        bad = byref(c_int(file.fileno())) if by_pointer else file.fileno()
        assert gpu.call("MemImportFromShareableHandle", byref(out), bad, 1) == INVALID
    private = gpu.create(shareable=False)
    number = c_int()
    assert gpu.call("MemExportToShareableHandle", byref(number), private, 1, 0) == INVALID


def extents(strict: bool) -> None:
    """Access to one extent alone: HIP up to 7.2 counts from the start of the reservation."""
    gpu = Gpu("hip")
    base = gpu.reserve(8 * UNIT)
    small, big = gpu.create(UNIT), gpu.create(2 * UNIT)
    gpu.map(base, UNIT, small)
    gpu.unlock(base, UNIT)
    gpu.map(base + UNIT, 2 * UNIT, big)
    alone = gpu.call("MemSetAccess", base + UNIT, 2 * UNIT, byref(Access(1, 0, 3)), 1)
    assert alone == (INVALID if strict else 0)
    gpu.unlock(base, 3 * UNIT)


def dmabufs(library: str, has_call: bool) -> None:
    gpu = Gpu("hip", library)
    assert hasattr(gpu.library, "hipMemGetHandleForAddressRange") == has_call
    hsa = ctypes.CDLL("libhsa-runtime64.so.1")
    fd, offset, size = c_int(-1), c_uint64(), c_size_t(4096)

    def by_hsa(address: int) -> int:
        where = c_void_p(address)
        return int(hsa.hsa_amd_portable_export_dmabuf(where, size, byref(fd), byref(offset)))

    allocated = c_uint64()
    gpu.ok("Malloc", byref(allocated), 2 * UNIT)
    poke(allocated.value + UNIT, b"here")
    assert by_hsa(allocated.value + UNIT) == 0
    assert offset.value == UNIT
    if not os.path.exists("/dev/udmabuf"):  # else a real dma-buf, which cannot be read so
        assert os.pread(fd.value, 4, offset.value) == b"here"
    os.close(fd.value)
    assert by_hsa(allocated.value + 2 * UNIT) != 0
    gpu.ok("Free", allocated)
    with gpu.memory(2 * UNIT) as address:
        assert by_hsa(address) != 0
        if has_call:
            gpu.ok("MemGetHandleForAddressRange", byref(fd), address + UNIT, UNIT, 1, 0)
            assert os.fstat(fd.value).st_size in (0, 2 * UNIT)  # 0: a real dma-buf
            os.close(fd.value)
            past = gpu.call("MemGetHandleForAddressRange", byref(fd), address, 4 * UNIT, 1, 0)
            assert past == INVALID
            assert (
                gpu.call("MemGetHandleForAddressRange", byref(fd), address, UNIT, 1, 1) == INVALID
            )


def streams() -> None:
    """A stream does its work in order and later; a plain copy waits for the streams it must."""
    gpu = Gpu("hip")
    stream = gpu.stream()
    go = threading.Event()
    task = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: go.wait() and None)
    with gpu.memory() as address:
        data = ctypes.create_string_buffer(b"later", 5)
        assert gpu.library.slurmmesh_emulator_submit(c_void_p(stream), task, None) == 0
        gpu.ok("MemcpyAsync", address, data, 5, 1, stream)
        assert gpu.call("StreamQuery", stream) == NOT_READY
        assert peek(address, 5) == bytes(5)
        gpu.ok("Memset", address, 1, 5)  # does not wait for a stream that is non-blocking
        assert peek(address, 5) == b"\1" * 5
        go.set()
        gpu.ok("StreamSynchronize", stream)
        assert peek(address, 5) == b"later"
        gpu.ok("StreamQuery", stream)
    assert gpu.call("GetLastError") == 0  # not ready is no error
    gpu.ok("StreamDestroy", stream)
    assert gpu.call("StreamQuery", stream) == 400
    gpu.ok("DeviceSynchronize")


def contexts() -> None:
    """CUDA wants a current context for copies and streams, in each thread; HIP a device."""
    gpu = Gpu("cuda")
    seen = array.array("i", [0, 0])

    def elsewhere() -> None:
        seen[0] = gpu.call("CtxSynchronize")
        context = c_void_p()
        gpu.ok("DevicePrimaryCtxRetain", byref(context), 1)
        gpu.ok("CtxPushCurrent", context)
        device = c_int()
        gpu.ok("CtxGetDevice", byref(device))
        seen[1] = device.value
        gpu.ok("CtxPopCurrent", byref(context))
        gpu.ok("DevicePrimaryCtxRelease", 1)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert list(seen) == [201, 1]
    device = c_int()
    gpu.ok("CtxGetDevice", byref(device))
    assert device.value == 0


def cycles(count: int) -> None:
    """Nothing grows: neither descriptors, nor what the emulator holds, nor memory."""
    gpu = Gpu("hip")

    def once() -> None:
        handle, base = gpu.create(), gpu.reserve(UNIT)
        gpu.map(base, UNIT, handle)
        gpu.unlock(base, UNIT)
        fd = gpu.export(handle)
        again = gpu.adopt(fd)
        os.close(fd)
        gpu.ok("MemRelease", again)
        gpu.ok("MemUnmap", base, UNIT)
        gpu.ok("MemRelease", handle)
        gpu.ok("MemAddressFree", base, UNIT)

    def size() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])

    for _ in range(500):
        once()
    before = open_files(), size()
    for _ in range(count):
        once()
    assert open_files() == before[0]
    assert size() - before[1] < 256  # pages
    assert set(gpu.alive().values()) == {0}
