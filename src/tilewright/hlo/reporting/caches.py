"""Keys and values of a serving step, as its attention kernels lay them out: what a cache really takes.

The kernels of vLLM on TPU (tpu-inference 0.32.0) keep rows of 128 lanes, as many in a word of 32 bits as its elements
are narrow: a token never takes less than one such word of rows, 512 bytes, on each device. Heads of
64 have one row each, so a device with fewer of them than fit a word (2 in bfloat16, 4 in 8 bits) loses memory.
"""

from __future__ import annotations

_LANES = 128
_WORD_BITS = 32
_LONG, _PAGES, _LEAST, _MOST = 8192, 16, 16, 256


def cache_bytes(heads: int, depth: int, bits: int = 16, devices: int = 1, latent: bool = False) -> int:
    """Bytes of cache that one token takes in one layer on one device, keys and values together.

    ``heads`` of ``depth`` elements of ``bits`` are split over ``devices``; with fewer heads than devices each device
    has one. At a depth of 64 key and value of a head share a row. ``latent``: one vector for both.

    >>> [cache_bytes(8, 128, bits, devices) for bits in (16, 8) for devices in (1, 4, 8)]
    [4096, 1024, 512, 2048, 512, 512]
    >>> [cache_bytes(8, 64, bits, devices) for bits in (16, 8) for devices in (1, 4, 8)]
    [2048, 512, 512, 1024, 512, 512]
    >>> cache_bytes(1, 576, latent=True) / (576 * 2)
    1.1111111111111112
    """
    width = -(-depth // _LANES) * _LANES
    if latent:
        return width * bits // 8
    own = -(-heads // devices)
    rows = own if 2 * depth == _LANES else 2 * own
    packing = _WORD_BITS // bits
    return -(-rows // packing) * packing * width * bits // 8


def page_tokens(longest: int) -> int:
    """Tokens of one page of the cache of a model whose longest sequence has ``longest``.

    >>> [page_tokens(length) for length in (128, 2048, 8192, 32768)]
    [16, 128, 256, 16]
    """
    if longest > _LONG:
        return _PAGES
    return min(max((1 << (longest - 1).bit_length()) // _PAGES, _LEAST), _MOST)


def table_bytes(sequences: int, longest: int) -> int:
    """Bytes of scalar memory for the numbers of all pages; a megabyte is what there is.

    >>> table_bytes(256, 32768) >> 20, table_bytes(256, 2048) >> 10
    (2, 16)
    """
    return sequences * -(-longest // page_tokens(longest)) * 4
