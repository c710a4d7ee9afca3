// Package index: (helper: write it.)
package index

// Index is which message in a partition, from 0.
type Index uint64
