-- :own (a bell). Behind what takes its entry out of the line: who waits right behind it looks now.
DO RELEASE_LOCK(:own);
