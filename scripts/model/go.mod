module github.com/jmqio/jmq/scripts/model

go 1.26
