"""Hashes of blocks: everything that shapes keys and values changes them."""

from octavo.core.block_hash import extend_chain, hash_block, hash_root


def test_every_extra_key_changes_the_root():
    roots = {
        hash_root(),
        hash_root(cache_salt="a"),
        hash_root(adapter="a"),
        hash_root(adapter="a", adapter_version=1),
        hash_root(weight_version=1),
        hash_root(cache_salt=""),
    }
    assert len(roots) == 6


def test_parent_tokens_their_order_and_media_change_a_block():
    root = hash_root()
    blocks = {
        hash_block(root, [1, 2]),
        hash_block(root, [2, 1]),
        hash_block(root, [12]),
        hash_block(root, [1, 2], [b"image"]),
        hash_block(root, [1, 2], [b"im", b"age"]),
        hash_block(hash_block(root, [1, 2]), [1, 2]),
        hash_block(hash_root(cache_salt="a"), [1, 2]),
    }
    assert len(blocks) == 7
    assert all(len(block) == 32 for block in blocks)


def test_a_chain_grows_without_changing_and_depends_on_its_beginning():
    root, tokens = hash_root(), list(range(12))
    chain: list[bytes] = []
    extend_chain(chain, root, tokens, 2, 4)
    first_two = list(chain)
    extend_chain(chain, root, tokens, 3, 4)
    assert chain[:2] == first_two and len(chain) == 3
    for changed, num_equal in [(0, 0), (3, 0), (4, 1), (11, 2)]:
        other: list[bytes] = []
        extend_chain(other, root, [99 if index == changed else index for index in tokens], 3, 4)
        assert other[:num_equal] == chain[:num_equal] and not set(other[num_equal:]) & set(chain)
