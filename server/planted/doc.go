// Package planted puts bugs into jmq, to show that its tests find them. A place that can have one asks by name:
//
//	if planted.Bug("directory not synced") { ... }
//
// In every build but those with the tag planted, Bug is the constant false: the compiler removes the question, the answer
// and the name. With the tag one bug at a time is there: the one that the environment variable JMQ_TEST_PLANTED names, or
// that a test has Set. The bugs, and what finds each within how many runs, are listed in bugs.go.
package planted
