// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"slices"
	"strings"
)

// tree is an ordered map from strings that shares what it can with the tree that it was copied from: a copy costs nothing,
// and a change copies the few nodes on its way. It is a B+ tree. A tree that nobody changes may be read from any goroutine.
// The zero value is empty.
type tree[V any] struct {
	root *node[V]
	size int
}

// owner tells the nodes that one writer has made, which it may change in place, from those that others may read.
type owner struct{ _ byte }

// node is a leaf, with a value for each key, or an inner node, with a kid for each, whose key is at most the kid's least one.
type node[V any] struct {
	owner *owner
	keys  []string
	vals  []V
	kids  []*node[V]
	memo  memo // of a leaf of rows
}

// maxNode bounds the keys of a node. One that has less than a quarter of it is joined with its neighbour, if both fit.
const maxNode = 32

func (t *tree[V]) get(key string) (v V, ok bool) {
	n := t.root
	if n == nil {
		return v, false
	}
	for n.kids != nil {
		n = n.kids[n.kidOf(key)]
	}
	i, ok := slices.BinarySearch(n.keys, key)
	if !ok {
		return v, false
	}
	return n.vals[i], true
}

// kidOf is the place of the kid that has key, if any has.
func (n *node[V]) kidOf(key string) int {
	i, ok := slices.BinarySearch(n.keys, key)
	if !ok && i > 0 {
		i--
	}
	return i
}

// set maps key to v, in nodes of o.
func (t *tree[V]) set(o *owner, key string, v V) {
	if t.root == nil {
		t.root = &node[V]{owner: o}
	}
	root, right, added := t.root.set(o, key, v)
	if right != nil {
		root = &node[V]{owner: o, keys: []string{root.keys[0], right.keys[0]}, kids: []*node[V]{root, right}}
	}
	t.root = root
	if added {
		t.size++
	}
}

// add is set for a key that comes after all others; else it does nothing, and returns false. It is quicker.
func (t *tree[V]) add(o *owner, key string, v V) bool {
	n, own := t.root, true
	for n != nil {
		own = own && n.owner == o
		if n.kids == nil {
			break
		}
		n = n.kids[len(n.kids)-1]
	}
	switch {
	case n != nil && n.keys[len(n.keys)-1] >= key:
		return false
	case n == nil || !own || len(n.keys) == maxNode:
		t.set(o, key, v)
		return true
	case len(n.keys) == cap(n.keys): // more will come
		n.keys = append(make([]string, 0, maxNode), n.keys...)
		n.vals = append(make([]V, 0, maxNode), n.vals...)
	}
	n.keys, n.vals = append(n.keys, key), append(n.vals, v)
	t.size++
	return true
}

// own returns n, or a copy of it, that o may change. There is room for one more key, unless the node is full.
func (n *node[V]) own(o *owner) *node[V] {
	if n.owner == o {
		return n
	}
	c := &node[V]{owner: o, keys: roomy(n.keys)}
	if n.kids != nil {
		c.kids = roomy(n.kids)
	} else {
		c.vals = roomy(n.vals)
	}
	return c
}

func roomy[T any](s []T) []T {
	return append(make([]T, 0, min(len(s)+1, maxNode)), s...)
}

// insert is slices.Insert with less room to spare.
func insert[T any](s []T, i int, v T) []T {
	if len(s) == cap(s) {
		s = append(make([]T, 0, min(len(s)+8, maxNode)), s...)
	}
	return slices.Insert(s, i, v)
}

// set returns what n is now, and a new right neighbour if it was full.
func (n *node[V]) set(o *owner, key string, v V) (left, right *node[V], added bool) {
	n = n.own(o)
	if n.kids == nil {
		i, ok := slices.BinarySearch(n.keys, key)
		if ok {
			n.vals[i] = v
			return n, nil, false
		}
		right = n.split(o, i)
		at := n
		if right != nil && i >= len(n.keys) && (i > len(n.keys) || len(right.keys) == 0) {
			at, i = right, i-len(n.keys)
		}
		at.keys, at.vals = insert(at.keys, i, key), insert(at.vals, i, v)
		return n, right, true
	}
	i := n.kidOf(key)
	if i == 0 {
		n.keys[0] = min(n.keys[0], key)
	}
	kid, sibling, added := n.kids[i].set(o, key, v)
	n.kids[i] = kid
	if sibling == nil {
		return n, nil, added
	}
	i++
	right = n.split(o, i)
	at := n
	if right != nil && i >= len(n.keys) && (i > len(n.keys) || len(right.keys) == 0) {
		at, i = right, i-len(n.keys)
	}
	at.keys, at.kids = insert(at.keys, i, sibling.keys[0]), insert(at.kids, i, sibling)
	return n, right, added
}

// split makes room in a full node for a key at i: it moves the upper half to a new node, or nothing if the key comes last, as all
// do when keys come in order.
func (n *node[V]) split(o *owner, i int) (right *node[V]) {
	if len(n.keys) < maxNode {
		return nil
	}
	half := maxNode / 2
	if i == maxNode {
		half = maxNode
	}
	right = &node[V]{owner: o, keys: slices.Clone(n.keys[half:])}
	clear(n.keys[half:])
	n.keys = n.keys[:half]
	if n.kids != nil {
		right.kids = append(make([]*node[V], 0, maxNode-half+1), n.kids[half:]...)
		clear(n.kids[half:])
		n.kids = n.kids[:half]
	} else {
		right.vals = slices.Clone(n.vals[half:])
		clear(n.vals[half:])
		n.vals = n.vals[:half]
	}
	return right
}

// delete removes key, if it is there.
func (t *tree[V]) delete(o *owner, key string) {
	if _, ok := t.get(key); !ok {
		return
	}
	t.size--
	t.root = t.root.delete(o, key)
	for t.root != nil && len(t.root.kids) == 1 {
		t.root = t.root.kids[0]
	}
}

// delete returns what n is now: nil if it is empty.
func (n *node[V]) delete(o *owner, key string) *node[V] {
	n = n.own(o)
	if n.kids == nil {
		i, _ := slices.BinarySearch(n.keys, key)
		n.keys, n.vals = slices.Delete(n.keys, i, i+1), slices.Delete(n.vals, i, i+1)
		if len(n.keys) == 0 {
			return nil
		}
		return n
	}
	i := n.kidOf(key)
	kid := n.kids[i].delete(o, key)
	if kid == nil {
		n.keys, n.kids = slices.Delete(n.keys, i, i+1), slices.Delete(n.kids, i, i+1)
		if len(n.kids) == 0 {
			return nil
		}
		return n
	}
	n.kids[i] = kid
	if len(kid.keys) < maxNode/4 {
		n.join(o, max(i-1, 0))
	}
	return n
}

// join puts the kids i and i+1 together, if both fit into one.
func (n *node[V]) join(o *owner, i int) {
	if i+1 >= len(n.kids) || len(n.kids[i].keys)+len(n.kids[i+1].keys) > maxNode {
		return
	}
	left, right := n.kids[i].own(o), n.kids[i+1]
	left.keys, left.vals, left.kids = append(left.keys, right.keys...), append(left.vals, right.vals...), append(left.kids, right.kids...)
	n.kids[i] = left
	n.keys, n.kids = slices.Delete(n.keys, i+1, i+2), slices.Delete(n.kids, i+1, i+2)
}

// cursor walks the keys that begin with a prefix, in order.
type cursor[V any] struct {
	prefix string
	path   []step[V] // to the leaf of the next key
}

type step[V any] struct {
	n *node[V]
	i int
}

// from returns a cursor of the tree as it is now.
func (t *tree[V]) from(prefix string) *cursor[V] {
	c := &cursor[V]{prefix: prefix}
	n := t.root
	if n == nil {
		return c
	}
	for n.kids != nil {
		i := n.kidOf(prefix)
		c.path = append(c.path, step[V]{n, i})
		n = n.kids[i]
	}
	i, _ := slices.BinarySearch(n.keys, prefix)
	c.path = append(c.path, step[V]{n, i})
	return c
}

// last is where the value is that next has just returned.
func (c *cursor[V]) last() (leaf *node[V], i int) {
	at := &c.path[len(c.path)-1]
	return at.n, at.i - 1
}

// next returns the next value; ok is false at the end.
func (c *cursor[V]) next() (v V, ok bool) {
	for len(c.path) > 0 {
		at := &c.path[len(c.path)-1]
		switch {
		case at.i >= len(at.n.keys):
			c.path = c.path[:len(c.path)-1]
			if len(c.path) > 0 {
				c.path[len(c.path)-1].i++
			}
		case at.n.kids != nil:
			c.path = append(c.path, step[V]{at.n.kids[at.i], 0})
		case !strings.HasPrefix(at.n.keys[at.i], c.prefix):
			c.path = nil
		default:
			at.i++
			return at.n.vals[at.i-1], true
		}
	}
	return v, false
}
