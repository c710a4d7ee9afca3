package local

import (
	"context"
	"errors"

	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/store"
)

var errNotYet = errors.New("store: not built yet")

func (s *Store) AlterTopic(context.Context, store.TopicID, uint32, store.Change) (store.Topic, error) {
	return store.Topic{}, errNotYet
}
func (s *Store) DeleteTopic(context.Context, store.TopicID, uint32, string, string) error {
	return errNotYet
}
func (s *Store) Stored(store.Partition, index.Index) (int64, error)    { return 0, errNotYet }
func (s *Store) Bytes(store.Partition) (int64, error)                  { return 0, errNotYet }
func (s *Store) SeekBytes(store.Partition, int64) (index.Index, error) { return 0, errNotYet }
func (s *Store) Trim(store.Partition, index.Index) error               { return errNotYet }
func (s *Store) Reclaim(context.Context) (int64, error)                { return 0, errNotYet }
func (s *Store) Usage(int) (store.Usage, error)                        { return store.Usage{}, errNotYet }
