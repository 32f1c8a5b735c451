"""Compressed request bodies: every encoding, stacked, damaged, and bombs."""

import gzip
import json
import zlib

import brotli
import pytest

from budwood.proxy.wire import BadBody, BodyTooLarge, UnknownEncoding, inflate
from budwood.proxy.wire.body import zstd

LIMIT = 8 * 2**20
SMALL = json.dumps({"model": "m", "text": "é\u2028 " * 100}).encode()
LARGE = json.dumps({"text": "".join(chr(97 + i * i % 26) for i in range(5 * 10**6))}).encode()


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def zstd_without_size(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.content_size_flag: 0})


ENCODINGS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "br": lambda data: brotli.compress(data, quality=1),
}
VARIANTS = [
    *ENCODINGS.items(),
    ("deflate", raw_deflate),
    ("zstd", zstd_without_size),
    ("zstd", lambda data: zstd.compress(data[:7]) + zstd.compress(data[7:])),
    ("gzip", lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:])),
    ("gzip", lambda data: gzip.compress(data) + b"\0" * 100),
]


@pytest.mark.parametrize("plain", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("name", "encode"), VARIANTS)
def test_every_encoding_is_undone(name, encode, plain):
    assert inflate(encode(plain), name, LIMIT) == plain


@pytest.mark.parametrize("header", [None, "", "identity", " Identity "])
def test_a_plain_body_stays_as_it_is(header):
    assert inflate(SMALL, header, LIMIT) == SMALL


def test_names_are_read_in_any_case():
    assert inflate(gzip.compress(SMALL), " GZip ", LIMIT) == SMALL


def test_stacked_encodings_are_undone_in_reverse_order():
    data = ENCODINGS["br"](ENCODINGS["zstd"](gzip.compress(SMALL)))
    assert inflate(data, "gzip, zstd, br", LIMIT) == SMALL


def test_too_many_layers_are_refused():
    with pytest.raises(UnknownEncoding):
        inflate(SMALL, ",".join(["gzip"] * 5), LIMIT)


def test_an_unknown_encoding_is_refused_by_name_of_the_known_ones():
    with pytest.raises(UnknownEncoding, match="zstd") as caught:
        inflate(SMALL, "gzip, compress", LIMIT)
    assert caught.value.status == 415


@pytest.mark.parametrize(("name", "encode"), VARIANTS)
def test_a_bomb_is_refused(name, encode):
    bomb = encode(b"\0" * (4 * LIMIT))
    with pytest.raises(BodyTooLarge) as caught:
        inflate(bomb, name, LIMIT)
    assert caught.value.status == 413


def test_a_bomb_inside_a_layer_is_refused():
    bomb = gzip.compress(gzip.compress(b"\0" * (4 * LIMIT)))
    with pytest.raises(BodyTooLarge):
        inflate(bomb, "gzip, gzip", LIMIT)


@pytest.mark.parametrize(("name", "encode"), VARIANTS)
def test_a_body_of_exactly_the_limit_is_taken(name, encode):
    assert inflate(encode(SMALL), name, max(len(SMALL), len(encode(SMALL)))) == SMALL


def test_a_plain_body_over_the_limit_is_refused():
    with pytest.raises(BodyTooLarge):
        inflate(b"x" * 11, None, 10)


@pytest.mark.parametrize(("name", "encode"), ENCODINGS.items())
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_cut_body_is_refused(name, encode, keep):
    data = encode(LARGE)
    with pytest.raises(BadBody) as caught:
        inflate(data[: int(len(data) * keep)], name, LIMIT)
    assert caught.value.status == 400


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff\xe0 no archive", SMALL])
def test_bytes_of_another_kind_are_refused(name, data):
    with pytest.raises(BadBody):
        inflate(data, name, LIMIT)


def test_rubbish_after_a_gzip_member_is_refused():
    with pytest.raises(BadBody):
        inflate(gzip.compress(SMALL) + b"rubbish", "gzip", LIMIT)


def test_endless_empty_members_are_refused():
    with pytest.raises(BadBody, match="members"):
        inflate(gzip.compress(b"") * 2000, "gzip", LIMIT)


def test_endless_empty_frames_are_refused():
    with pytest.raises(BadBody, match="frames"):
        inflate(zstd.compress(b"") * 2000, "zstd", LIMIT)


def test_a_zstd_frame_that_asks_for_much_memory_is_refused():
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    data = compressor.compress(SMALL * 100) + compressor.flush()
    with pytest.raises(BadBody):
        inflate(data, "zstd", LIMIT)
