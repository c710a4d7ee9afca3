package server

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/jmqio/jmq/server/broker"
	"github.com/jmqio/jmq/server/dispatch"
	"github.com/jmqio/jmq/server/index"
	"github.com/jmqio/jmq/server/journal"
	"github.com/jmqio/jmq/server/listener"
	"github.com/jmqio/jmq/server/meta"
	"github.com/jmqio/jmq/server/registry"
	"github.com/jmqio/jmq/server/retention"
	"github.com/jmqio/jmq/server/store"
	"github.com/jmqio/jmq/server/store/local"
	"github.com/jmqio/jmq/wire"
)

// seriesMax bounds the series of one metric: labels are topic and group at most, never partition or client, and what is
// beyond is counted in jmq_series_left_out.
const seriesMax = 10_000

// collector renders the packages' Metrics at each scrape. It keeps nothing of its own.
type collector struct {
	s         *Server
	buildInfo prometheus.Metric
}

func newCollector(s *Server) *collector {
	labels := prometheus.Labels{"version": s.config.Version, "node": s.config.Node.Name}
	if s.has(RoleBroker) {
		labels["broker_group"] = s.config.Broker.BrokerGroup
	}
	return &collector{s: s, buildInfo: prometheus.MustNewConstMetric(
		prometheus.NewDesc("jmq_build_info", "Version of this binary; always 1.", nil, labels), prometheus.GaugeValue, 1)}
}

func (c *collector) register(r *prometheus.Registry) {
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descMessagesIn   = desc("jmq_messages_in_total", "Messages stored and committed, since the topic was made.", "topic")
	descStored       = desc("jmq_topic_messages", "Messages kept now.", "topic")
	descPartitions   = desc("jmq_topic_partitions", "Partitions of a topic.", "topic")
	descGroupLag     = desc("jmq_group_lag_messages", "Messages that a group has not consumed.", "topic", "group")
	descGroupAge     = desc("jmq_group_lag_seconds", "How long ago the oldest message was stored that a group has not consumed; 0: it has consumed all.", "topic", "group")
	descTopicAge     = desc("jmq_topic_oldest_seconds", "How long ago the oldest message kept was stored; 0: none is.", "topic")
	descGroupLeased  = desc("jmq_group_inflight_messages", "Messages that members of a group hold now.", "topic", "group")
	descLeftOut      = desc("jmq_series_left_out", "Series not shown, since a metric has too many.")
	descBytesIn      = desc("jmq_message_in_bytes_total", "Bytes of the batches stored and committed, since the start.")
	descBatchesIn    = desc("jmq_batches_in_total", "Batches stored and committed, since the start.")
	descMessagesOut  = desc("jmq_messages_out_total", "Messages given to consumers, each time they were, since the start.")
	descBytesOut     = desc("jmq_message_out_bytes_total", "Bytes of the batches given to consumers, since the start.")
	descProduceTime  = desc("jmq_produce_duration_seconds", "From a send's arrival to its commit.")
	descAcked        = desc("jmq_acked_messages_total", "Messages acknowledged.")
	descReleased     = desc("jmq_released_messages_total", "Messages that consumers gave back.")
	descAckRefused   = desc("jmq_acks_refused_total", "Items of acks that were not ok: late, foreign, repeated.")
	descRefused      = desc("jmq_requests_refused_total", "Requests that the broker refused, by code.", "code")
	descReadErrors   = desc("jmq_read_errors_total", "Reads of stored messages that failed.")
	descSkipped      = desc("jmq_skipped_messages_total", "Messages that a group was moved over since they will never come: damaged, trimmed.", "why")
	descLeases       = desc("jmq_leases", "Leases held now.")
	descLeasesGiven  = desc("jmq_leases_total", "Leases given.")
	descWaiting      = desc("jmq_fetches_waiting", "Fetches that wait for messages.")
	descSyncs        = desc("jmq_fsync_duration_seconds", "Syncs of the journal: how many, and the time that they took.")
	descCommits      = desc("jmq_commits_total", "Commits of the journal.")
	descAppends      = desc("jmq_appends_total", "Appends to the journal.")
	descJournalBytes = desc("jmq_journal_written_bytes_total", "Bytes of records written by commits.")
	descPages        = desc("jmq_journal_page_bytes_total", "Bytes of the pages of 4 KiB that commits wrote into: what the disk is given for them.")
	descPadded       = desc("jmq_journal_padded_bytes_total", "Of the bytes written by commits, those that only fill pages, so that none is written twice.")
	descBusy         = desc("jmq_appends_busy_total", "Appends refused since too much waited for the disk.")
	descQueueBytes   = desc("jmq_journal_queue_bytes", "Bytes that wait for the disk.")
	descStoreBytes   = desc("jmq_store_bytes", "Bytes of journal kept.")
	descSegments     = desc("jmq_journal_segments", "Segments of the journal.")
	descFilled       = desc("jmq_journal_filled_bytes_total", "Zeroes written to prepare segments.")
	descRecycled     = desc("jmq_journal_recycled_total", "Segments that were freed and became room for new ones.")
	descHoles        = desc("jmq_journal_holes", "Ranges of the journal that were lost to damage of the disk: act now.")
	descLost         = desc("jmq_lost_messages_total", "Messages found lost to damage of the disk.")
	descVerified     = desc("jmq_verified_bytes_total", "Bytes of the journal read again to find damage.")
	descCarried      = desc("jmq_carried_forward_bytes_total", "Bytes appended again so that their segments could go.")
	descSpares       = desc("jmq_journal_spares", "Segments that are ready to be begun.")
	descReserve      = desc("jmq_journal_reserve_in_use", "1 while no segment can be made and only acks and control records are taken, into the reserve.")
	descLostBytes    = desc("jmq_journal_lost_bytes", "Bytes of the journal in holes.")
	descIndexRuns    = desc("jmq_index_runs", "Files of the index.")
	descIndexBytes   = desc("jmq_index_bytes", "Bytes of the index's files.")
	descCheckBytes   = desc("jmq_checkpoint_bytes", "Size of the newest checkpoint.")
	descCheckpoints  = desc("jmq_checkpoints_total", "Checkpoints written.")
	descCheckWritten = desc("jmq_checkpoint_written_bytes_total", "Bytes of checkpoints written.")
	descIndexWritten = desc("jmq_index_written_bytes_total", "Bytes of the index's files written, merged ones too.")
	descCheckErrors  = desc("jmq_checkpoint_errors_total", "Checkpoints that could not be written.")
	descBehind       = desc("jmq_checkpoint_lag_bytes", "Bytes of journal that a recovery would read.")
	descIndexFiles   = desc("jmq_index_files_open", "Index files open.")
	descFailed       = desc("jmq_store_failed", "1 when the store stopped after a failed write or sync.")
	descConnections  = desc("jmq_connections", "Client connections open.", "kind")
	descAccepted     = desc("jmq_connections_accepted_total", "Connections accepted.")
	descTooMany      = desc("jmq_connections_refused_total", "Connections refused since there were too many.")
	descBufferBytes  = desc("jmq_buffer_bytes", "Bytes of node.listener.bufferBytesMax in use: large frames half read, answers not yet taken.")
	descBufferNone   = desc("jmq_buffer_refused_total", "Frames answered busy, and answers that ended their connection, since those bytes were used up.", "what")
	descNetIn        = desc("jmq_network_in_bytes_total", "Bytes read from clients.")
	descNetOut       = desc("jmq_network_out_bytes_total", "Bytes written to clients.")
	descPaused       = desc("jmq_topic_paused", "1 while an operator has stopped sends or fetches of a topic.", "topic", "what")
	descExpiries     = desc("jmq_lease_expiries_total", "Leases that ran out: their messages are given again, one at a time.")
	descDiskTotal    = desc("jmq_disk_total_bytes", "Size of the disk of a folder; absent while it cannot be read.", "folder")
	descDiskFree     = desc("jmq_disk_free_bytes", "Free bytes of the disk of a folder.", "folder")
	descDiskUsed     = desc("jmq_disk_used_ratio", "Share of the disk of a folder in use.", "folder")
	descLimit        = desc("jmq_store_limit_bytes", "broker.store.bytesMax; 0: none.")
	descLimited      = desc("jmq_store_limited_bytes", "Bytes that count towards broker.store.bytesMax; 0 without one.")
	descLevel        = desc("jmq_store_state", "1 for the state that the store is in: ok, warn, early-delete, refusing.", "state")
	descFolderGone   = desc("jmq_store_folder_gone", "1 while a folder of the store is not where it was: act now.")
	descSuspended    = desc("jmq_retention_suspended_seconds", "How long nothing goes by age yet since the clock jumped; 0: it does.")
	descJumps        = desc("jmq_clock_jumps_total", "Jumps of the wall clock seen.")
	descAbandoned    = desc("jmq_groups_abandoned", "Groups on topics that were not seen for broker.retention.abandonedAfter.")
	descTrimmed      = desc("jmq_retention_messages_total", "Messages that went, by why: age, size, early.", "why")
	descReclaimed    = desc("jmq_reclaimed_bytes_total", "Bytes of the journal that were freed.")
	descPasses       = desc("jmq_retention_passes_total", "Passes of retention.")
	descPassErrors   = desc("jmq_retention_errors_total", "Passes of retention that did not do all they had to.")
	descDatabase     = desc("jmq_registry_database_up", "1 while the metadata database can be reached and is trusted.")
	descHeartbeats   = desc("jmq_registry_heartbeats_total", "Heartbeats received.")
	descBrokers      = desc("jmq_registry_brokers", "Brokers registered, by whether they are heard.", "state")
	descChanges      = desc("jmq_registry_changes_total", "Changes of metadata asked for at this node: made, or refused.", "outcome")
	descRows         = desc("jmq_registry_rows_total", "Rows of broker groups that this node wrote: who is master, which slaves are in sync.")
	descPromotions   = desc("jmq_registry_promotions_total", "Other masters that this node named without an operator.")
	descConnected    = desc("jmq_metadata_connected", "1 while a registry node answers.")
	descSilence      = desc("jmq_metadata_silence_seconds", "How long no registry node has answered; 0: one does.")
	descOldMetadata  = desc("jmq_metadata_refused_total", "Metadata refused since it was older than what is known.")
	descCacheErrors  = desc("jmq_metadata_cache_errors_total", "Copies of the metadata that could not be written to disk.")
	descGeneration   = desc("jmq_metadata_generation", "Generation of the metadata known here.")
	descMetadata     = desc("jmq_metadata_version", "Version of the metadata known here.")
	descWatchers     = desc("jmq_metadata_watchers", "Who waits for changes: clients for routes, nodes for objects.", "what")
	descDenied       = desc("jmq_broker_denied_total", "Requests and connections of those who may not, or not now, by what they were told.", "reason")
	descAboveLimit   = desc("jmq_broker_limited_total", "Requests above a limit, by the kind of whose limit it is.", "scope")
	descApplied      = desc("jmq_broker_metadata_version", "Version of the metadata whose rights and limits are in force.")
	descPending      = desc("jmq_broker_topics_pending", "Topics that are not yet as the metadata says.")
	descKept         = desc("jmq_broker_topics_unknown", "Topics that are kept and not served: the registry does not know them, or they went elsewhere before they were empty.")
	descExpiry       = desc("jmq_tls_certificate_expiry_timestamp_seconds", "When the certificate of this node ends, as Unix time; absent without one.")
	descReloads      = desc("jmq_tls_reloads_total", "Changes of the TLS files: taken into use, or not usable.", "outcome")
	descTLSErrors    = desc("jmq_tls_errors_total", "Connections whose encryption could not be agreed on.")
	descHalfOpen     = desc("jmq_connections_half_open", "Connections of which it is not known yet who the peer is.")
	descEvicted      = desc("jmq_connections_evicted_total", "Half open connections closed since there were too many.")
	descAuth         = desc("jmq_authentications_total", "Peers that proved who they are, and that did not.", "outcome")
	descExpelled     = desc("jmq_sessions_expelled_total", "Connections ended because their peer's identity was not good any more.")
	descReplicaRole  = desc("jmq_replica_role", "1 for what the broker is in its broker group: master, slave, waiting, copying.", "role")
	descReplicaTerm  = desc("jmq_replica_term", "Term of the journal's last epoch.")
	descReplicaStart = desc("jmq_replica_start", "Start of the journal's last epoch: how often the master of the term opened it.")
	descReplicaEnd   = desc("jmq_replica_position_bytes", "Positions of the journal here.", "what")
	descReplicaSet   = desc("jmq_replica_in_sync", "At a master: slaves in sync.")
	descReplicaDown  = desc("jmq_replica_degraded", "At a master: 1 while a slave of the broker group is not in sync.")
	descReplicaLag   = desc("jmq_replica_lag_bytes", "At a master: what a slave has not acknowledged.", "slave")
	descReplicaLate  = desc("jmq_replica_lag_seconds", "At a master: age of the oldest byte that a slave has not acknowledged.", "slave")
	descReplicaAck   = desc("jmq_replica_ack_seconds", "At a master: from push to acknowledgement by a slave, the median of the last ones.", "slave")
	descReplicaDelay = desc("jmq_replica_sync_delay_seconds", "At a slave: age of the oldest byte that is not on its disk.")
	descReplicaServe = desc("jmq_replica_serving", "1 while a slave serves reads, since its master is away.")
	descReplicaStuck = desc("jmq_replica_refused", "1 while the broker would have to cut what is committed to follow: act now.")
	descResent       = desc("jmq_replica_resent_messages_total", "Messages that were set aside with the journal's end, and after a promotion by force were sent again, or could not be.", "outcome")
	descReplicaIn    = desc("jmq_replica_copied_bytes_total", "Bytes of records copied from a master since the store was opened: catching up and keeping up.")
	descPanics       = desc("jmq_panics_total", "Requests that hit a defect of the broker.")
)

// Describe sends nothing: what there is depends on topics and groups.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	out <- c.buildInfo
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}

	b, sockets, md := c.s.broker.Load(), c.s.sockets.Load(), c.s.metadata.Load()
	if sockets != nil {
		collectSockets(sockets.Metrics(), counter, gauge)
	}
	if md != nil {
		collectMetadata(md, counter, gauge)
	}
	if tls := c.s.certificates.Load(); tls != nil {
		m := tls.Metrics()
		gauge(descExpiry, float64(m.Expires.Unix()))
		counter(descReloads, float64(m.Reloads), "used")
		counter(descReloads, float64(m.Errors), "refused")
	}
	if b == nil || sockets == nil {
		return
	}
	if b.replicas != nil {
		counter(descResent, float64(b.replicas.resent.sent.Load()), "sent")
		counter(descResent, float64(b.replicas.resent.skipped.Load()), "skipped")
	}
	e := b.engine.Load()
	if e == nil {
		return
	}
	if b.replicas != nil {
		collectReplica(b.replicas.status(), len(b.replicas.peers()), e.store.Metrics().Journal.CopiedBytes, counter, gauge)
	}
	m := e.broker.Metrics()
	counter(descBytesIn, float64(m.BytesIn))
	counter(descBatchesIn, float64(m.BatchesIn))
	counter(descMessagesOut, float64(m.MessagesOut))
	counter(descBytesOut, float64(m.BytesOut))
	counter(descAcked, float64(m.Acks))
	counter(descReleased, float64(m.Releases))
	counter(descAckRefused, float64(m.AcksRefused))
	counter(descReadErrors, float64(m.ReadErrors))
	counter(descSkipped, float64(m.SkippedDamaged), "damaged")
	counter(descSkipped, float64(m.SkippedTrimmed), "trimmed")
	for code, n := range m.Refused {
		counter(descRefused, float64(n), code.String())
	}
	buckets, count := map[float64]uint64{}, uint64(0)
	for i, bound := range broker.DurationBounds {
		count += m.ProduceDuration.Counts[i]
		buckets[bound.Seconds()] = count
	}
	count += m.ProduceDuration.Counts[len(broker.DurationBounds)]
	out <- prometheus.MustNewConstHistogram(descProduceTime, count, m.ProduceDuration.Sum.Seconds(), buckets)
	gauge(descLeases, float64(m.Dispatch.Leased))
	counter(descLeasesGiven, float64(m.Dispatch.Leases))
	gauge(descWaiting, float64(m.Dispatch.Waiting))
	counter(descExpiries, float64(m.Dispatch.Ended[dispatch.EndedTimeout]))

	for code, n := range m.Denied {
		counter(descDenied, float64(n), code.String())
	}
	for scope, n := range m.Limited {
		counter(descAboveLimit, float64(n), scope)
	}
	if m.Metadata.Ruled {
		gauge(descApplied, float64(m.Metadata.Version))
		gauge(descPending, float64(m.Metadata.TopicsPending))
		gauge(descKept, float64(m.Metadata.TopicsUnknown))
	}

	sm := e.store.Metrics()
	j := sm.Journal
	out <- prometheus.MustNewConstSummary(descSyncs, uint64(j.Syncs), j.SyncTime.Seconds(), nil)
	counter(descCommits, float64(j.Commits))
	counter(descAppends, float64(j.Appends))
	counter(descJournalBytes, float64(j.Bytes))
	counter(descPages, float64(j.PageBytes))
	counter(descPadded, float64(j.PaddedBytes))
	counter(descBusy, float64(j.Busy))
	gauge(descQueueBytes, float64(j.QueueBytes))
	gauge(descStoreBytes, float64(j.Synced-j.Begin))
	gauge(descSegments, float64(j.Segments))
	counter(descFilled, float64(j.FilledBytes))
	counter(descRecycled, float64(j.Recycled))
	gauge(descHoles, float64(sm.Holes))
	counter(descLost, float64(sm.LostMessages))
	counter(descVerified, float64(sm.VerifiedBytes))
	counter(descCarried, float64(sm.CarriedBytes))
	gauge(descSpares, float64(j.Spares))
	gauge(descReserve, oneIf(j.ReserveInUse))
	gauge(descLostBytes, float64(j.LostBytes))
	gauge(descIndexRuns, float64(sm.Index.Runs))
	gauge(descIndexBytes, float64(sm.Index.RunBytes))
	gauge(descCheckBytes, float64(sm.CheckpointBytes))
	counter(descCheckpoints, float64(sm.Checkpoints))
	counter(descCheckWritten, float64(sm.CheckpointsBytes))
	counter(descIndexWritten, float64(sm.Index.FlushedBytes+sm.Index.MergedBytes))
	counter(descCheckErrors, float64(sm.CheckpointErrors))
	gauge(descBehind, float64(sm.Applied-min(sm.Applied, sm.Checkpoint)))
	gauge(descIndexFiles, float64(sm.Index.FilesOpen))
	gauge(descFailed, oneIf(e.store.Err() != nil))

	collectRetention(e.keeper.Load().Metrics(), counter, gauge)

	gauge(descLeftOut, float64(collectTopics(e.broker, e.store, namespacesOf(md), c.s.config.Now(), counter, gauge)))
}

// collectSockets renders the wire port.
func collectSockets(n listener.Metrics, counter, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(descConnections, float64(n.Connections), "client")
	counter(descAccepted, float64(n.Accepted))
	counter(descTooMany, float64(n.Refused))
	gauge(descHalfOpen, float64(n.HalfOpen))
	counter(descEvicted, float64(n.Evicted))
	counter(descTLSErrors, float64(n.TLSErrors))
	counter(descAuth, float64(n.Authenticated), "ok")
	counter(descAuth, float64(n.AuthenticationsFailed), "failed")
	counter(descExpelled, float64(n.Expelled))
	gauge(descBufferBytes, float64(n.Buffers.Bytes))
	counter(descBufferNone, float64(n.Buffers.FramesRefused), "frame")
	counter(descBufferNone, float64(n.Buffers.QueuesRefused), "answer")
	counter(descNetIn, float64(n.BytesRead))
	counter(descNetOut, float64(n.BytesWritten))
	counter(descPanics, float64(n.Panics))
}

// collectMetadata renders what is known of metadata and of its way here.
func collectMetadata(md *metadata, counter, gauge func(*prometheus.Desc, float64, ...string)) {
	var feed registry.FeedMetrics
	if md.node != nil {
		m := md.node.Metrics()
		feed = m.Feed
		gauge(descDatabase, oneIf(m.Database))
		counter(descHeartbeats, float64(m.Heartbeats))
		gauge(descBrokers, float64(m.BrokersLiving), "living")
		gauge(descBrokers, float64(m.BrokersAway), "away")
		counter(descChanges, float64(m.Changes), "made")
		counter(descChanges, float64(m.ChangesRefused), "refused")
		counter(descRows, float64(m.Rows))
		counter(descPromotions, float64(m.Promotions))
	} else {
		m := md.follower.Metrics()
		feed = m.Feed
		gauge(descConnected, oneIf(m.Connected))
		gauge(descSilence, m.Silence.Seconds())
		counter(descOldMetadata, float64(m.Refused))
		counter(descCacheErrors, float64(m.CacheFailures))
	}
	gauge(descGeneration, float64(feed.Generation))
	gauge(descMetadata, float64(feed.Version))
	gauge(descWatchers, float64(feed.RouteWatchers), "routes")
	gauge(descWatchers, float64(feed.ObjectWatchers), "objects")
}

// collectReplica renders the broker's part in its broker group.
func collectReplica(st *wire.ReplicaStatus, others int, copied int64, counter, gauge func(*prometheus.Desc, float64, ...string)) {
	for _, role := range []string{roleMaster, roleSlave, roleWaiting, roleCopying} {
		gauge(descReplicaRole, oneIf(st.Role == role), role)
	}
	epoch := journal.Epoch(st.Epoch)
	gauge(descReplicaTerm, float64(epoch.Term()))
	gauge(descReplicaStart, float64(epoch.Start()))
	gauge(descReplicaEnd, float64(st.Begin), "begin")
	gauge(descReplicaEnd, float64(st.Committed), "committed")
	gauge(descReplicaEnd, float64(st.Synced), "synced")
	gauge(descReplicaEnd, float64(st.End), "end")
	gauge(descReplicaServe, oneIf(st.Serving))
	gauge(descReplicaStuck, oneIf(st.Refused))
	counter(descReplicaIn, float64(copied))
	if st.Role != roleMaster {
		gauge(descReplicaDelay, float64(st.SyncDelayMs)/1e3)
		return
	}
	in := 0
	for _, s := range st.Slaves {
		if s.InSync {
			in++
		}
		gauge(descReplicaLag, float64(s.LagBytes), s.Broker)
		gauge(descReplicaLate, float64(s.LagMs)/1e3, s.Broker)
		gauge(descReplicaAck, float64(s.AckUs)/1e6, s.Broker)
	}
	gauge(descReplicaSet, float64(in))
	gauge(descReplicaDown, oneIf(in < others))
}

// collectRetention renders what is known of disks, and what went.
func collectRetention(m retention.Metrics, counter, gauge func(*prometheus.Desc, float64, ...string)) {
	for _, d := range m.Disks {
		if d.Total > 0 {
			gauge(descDiskTotal, float64(d.Total), d.What)
			gauge(descDiskFree, float64(d.Free), d.What)
			gauge(descDiskUsed, 1-float64(d.Free)/float64(d.Total), d.What)
		}
	}
	gauge(descLimit, float64(m.Limit))
	gauge(descLimited, float64(m.Limited))
	for l := retention.OK; l <= retention.Refuse; l++ {
		gauge(descLevel, oneIf(l == m.Level), l.String())
	}
	gauge(descFolderGone, oneIf(m.Gone))
	gauge(descSuspended, m.Suspended.Seconds())
	counter(descJumps, float64(m.Jumps))
	gauge(descAbandoned, float64(m.Abandoned))
	counter(descTrimmed, float64(m.TrimmedAge), "age")
	counter(descTrimmed, float64(m.TrimmedSize), "size")
	counter(descTrimmed, float64(m.TrimmedEarly), "early")
	counter(descReclaimed, float64(m.Reclaimed))
	counter(descPasses, float64(m.Passes))
	counter(descPassErrors, float64(m.Errors))
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// lookups bounds how many stored times one scrape looks up, which may be a read of the disk each.
const lookupsMax = 20_000

// lookups is how many are left, and the wall clock.
type lookups struct {
	store *local.Store
	left  int
	now   time.Time
}

// age returns how long ago the oldest of some messages was stored, none of them 0; false if that is too much to look up.
func (l *lookups) age(oldest []at) (time.Duration, bool) {
	if len(oldest) > l.left {
		return 0, false
	}
	l.left -= len(oldest)
	var age time.Duration
	for _, m := range oldest {
		// One that cannot be read, or went meanwhile, has no age.
		if stored, err := l.store.Stored(m.partition, m.index); err == nil {
			age = max(age, l.now.Sub(time.Unix(0, stored)))
		}
	}
	return age, true
}

// at names a message.
type at struct {
	partition store.Partition
	index     index.Index
}

// namespaces are the names of namespaces by their numbers; that of the default one is not among them.
type namespaces map[uint32]string

func namespacesOf(md *metadata) namespaces {
	n := namespaces{}
	if md == nil {
		return n
	}
	if s := md.known.Load(); s != nil {
		for o := range s.All(meta.KindNamespace) {
			if o.Name != meta.NamespaceDefault {
				n[o.Spec.(*meta.Namespace).ID] = o.Name
			}
		}
	}
	return n
}

// nameOf is a topic's name as a label: NAMESPACE:NAME outside the default namespace.
func (n namespaces) nameOf(t store.Topic) string {
	if t.Namespace == 0 {
		return t.Name
	}
	if name, ok := n[t.Namespace]; ok {
		return name + ":" + t.Name
	}
	return strconv.FormatUint(uint64(t.Namespace), 10) + ":" + t.Name
}

// collectTopics renders what has a topic or a group, and returns how many series it left out.
func collectTopics(b *broker.Broker, s *local.Store, namespaces namespaces, now time.Time, counter, gauge func(*prometheus.Desc, float64, ...string)) (leftOut int) {
	topics, groups := 0, 0
	look := lookups{store: s, left: lookupsMax, now: now}
	aged := func(d *prometheus.Desc, oldest []at, labels ...string) {
		if age, ok := look.age(oldest); ok {
			gauge(d, age.Seconds(), labels...)
		} else {
			leftOut++
		}
	}
	for _, t := range s.Topics() {
		if topics++; topics > seriesMax {
			leftOut++
			continue
		}
		name := namespaces.nameOf(t)
		partition := func(p uint32) store.Partition {
			return store.Partition{Topic: t.ID, Incarnation: t.Incarnation, Partition: uint16(p)}
		}
		var first, end index.Index
		var oldest []at
		for p := range t.Partitions {
			f, e, err := s.Bounds(partition(p))
			if err != nil {
				continue // deleted meanwhile
			}
			if first, end = first+f, end+e; f < e {
				oldest = append(oldest, at{partition(p), f})
			}
		}
		counter(descMessagesIn, float64(end), name)
		gauge(descStored, float64(end-first), name)
		gauge(descPartitions, float64(t.Partitions), name)
		gauge(descPaused, oneIf(t.Settings.PauseProduce), name, "produce")
		gauge(descPaused, oneIf(t.Settings.PauseConsume), name, "consume")
		aged(descTopicAge, oldest, name)
		lags, err := b.GroupLag(wire.WithPeer(context.Background(), &wire.Peer{Namespace: t.Namespace}), &wire.GroupLagRequest{Topic: t.Name})
		if err != nil {
			leftOut++ // more groups and partitions than one answer holds, or the broker has stopped
			continue
		}
		type sum struct {
			lag, leased uint64
			oldest      []at
		}
		sums, order := map[string]*sum{}, []string(nil)
		for _, p := range lags.Partitions {
			v := sums[p.Group]
			if v == nil {
				v = &sum{}
				sums[p.Group] = v
				order = append(order, p.Group)
			}
			v.lag, v.leased = v.lag+p.Lag, v.leased+p.Leased
			if p.Lag > 0 {
				v.oldest = append(v.oldest, at{partition(p.Partition), index.Index(max(p.AckOffset, p.First))})
			}
		}
		for _, g := range order {
			if groups++; groups > seriesMax {
				leftOut++
				continue
			}
			v := sums[g]
			gauge(descGroupLag, float64(v.lag), name, g)
			gauge(descGroupLeased, float64(v.leased), name, g)
			aged(descGroupAge, v.oldest, name, g)
		}
	}
	return leftOut
}
