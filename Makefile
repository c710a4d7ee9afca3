# jmq: git, make and Go are all that is needed.
#
#   make run      build, start jmq dev, send and consume a sample of orders, stay up
#   make test     everything that can be tested
#
#   make check    what must be green before a commit: build, format, vet, staticcheck, generated code, tests with -race
#   make bench    disk, limit and broker, interleaved, as one table
#   make bench-full   a large backlog, many topics, recycled segments, a restart, slaves, fail-over: ROWS=backlog,topics
#   make demo     send an order log while the broker is killed: make demo ORDERS=FILE; RETAIN=1: with a limit for its folder;
#                 CLUSTER=1: through a cluster whose database, registry nodes and brokers are killed (scripts/cluster runs one)
#   make chaos    schedules of faults on clusters of real processes, and in tests: make chaos N=1000 FAULTS=kill,power,slave SEED=1 RESUME=FILE
#                 make chaos FAULTS=soak DURATION=2h RESUME=FILE has one cluster in faults of all kinds for so long
#   make fuzz     every fuzz target for FUZZ inputs
#   make mutations   N mutations for each decoder, what is there with N=0: make mutations N=100000000 JOBS=2 RESUME=FILE
#   make build | generate | fmt | deps

GO        ?= go
FUZZ      ?= 500000x
ORDERS    ?=
RETAIN    ?=
CLUSTER   ?=
N         ?= 0
FAULTS    ?=
DURATION  ?= 12m
SEED      ?= 1
RESUME    ?=
ROWS      ?=
JOBS      ?= 1
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS   := -s -w -X main.version=$(VERSION)
TOOL      := $(GO) tool -modfile=scripts/tools/go.mod
# A binary built with -race sleeps one second at its end unless told not to.
RACE      := GORACE=atexit_sleep_ms=0 $(GO) test -race

.PHONY: run test check bench bench-full demo chaos fuzz mutations deps generate build fmt .bin/demo .bin/chaos

run: build .bin/demo
	@exec .bin/demo -run ./jmq

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o jmq .

# Not by go run, which does not pass on how its program ended.
.bin/demo .bin/chaos: .bin/%:
	@$(GO) build -o $@ ./scripts/$*

check:
	$(GO) build ./...
	@bad=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); test -z "$$bad" || { echo "gofmt these: $$bad"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags planted ./...
	$(GO) -C scripts/tools vet ./...
	$(GO) -C scripts/model vet ./...
	$(GO) -C scripts/model test -short ./...
	$(TOOL) staticcheck ./...
	scripts/generated.sh
	$(RACE) -timeout 240s ./...

# What check does not do: the long versions of the tests, without -race; the planted bugs, which must be caught; a
# moment of every fuzz target; the demo on a small generated log, with its kills; one quick round of the benchmark.
test: deps check
	JMQ_TEST_REQUIRE=all $(GO) test -count=1 -timeout 20m ./...
	$(GO) test -count=1 -run Planted -tags planted ./...
	scripts/fuzz.sh 2000x
	$(MAKE) build .bin/demo
	.bin/demo -jmq ./jmq -small
	.bin/demo -jmq ./jmq -small -retain
	.bin/demo -jmq ./jmq -small -with-cluster
	scripts/cluster test
	JMQ_TEST_REQUIRE=all $(MAKE) chaos
	$(GO) run ./scripts/bench -smoke
	$(GO) run ./scripts/bench -full -smoke

bench: build
	$(GO) run ./scripts/bench

bench-full: build
	$(GO) run ./scripts/bench -full -rows '$(ROWS)'

chaos: build .bin/chaos
	@exec .bin/chaos run -n $(N) -faults '$(FAULTS)' -seed $(SEED) -duration $(DURATION) -resume '$(RESUME)'

demo: build .bin/demo
	@exec .bin/demo -jmq ./jmq -orders '$(ORDERS)' $(if $(RETAIN),-retain) $(if $(CLUSTER),-with-cluster)

fuzz:
	scripts/fuzz.sh $(FUZZ)

mutations:
	@JOBS=$(JOBS) scripts/mutations.sh $(N) $(RESUME)

deps:
	scripts/deps.sh

generate:
	$(GO) -C scripts/tools run ./protogen ../../wire jmq.proto

fmt:
	gofmt -w $$(git ls-files -co --exclude-standard '*.go')
