package local

import (
	"context"
	"errors"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/store"
)

var errNotYet = errors.New("store: not built yet")

func (s *Store) Bytes(p store.Partition) (int64, error) {
	_, err := s.part(p)
	return 0, errors.Join(err, errNotYet)
}
func (s *Store) SeekBytes(p store.Partition, _ int64) (index.Index, error) {
	_, err := s.part(p)
	return 0, errors.Join(err, errNotYet)
}
func (s *Store) Reclaim(context.Context) (int64, error) { return 0, errNotYet }
func (s *Store) Usage(int) (store.Usage, error)         { return store.Usage{}, errNotYet }
